"""Models: checkpoints read strictly, composed of a vision tower, a projector and a decoder."""
