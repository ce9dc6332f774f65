"""How the bundled model was made: the generator of pictures, the trainer, the export. Nothing in `src` needs it
but `tapetum evaluate`, which draws its questions from the generator."""
