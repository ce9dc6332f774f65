"""InternVL 2, 2.5, 3 and 3.5, in the layout of transformers and in the original one."""
