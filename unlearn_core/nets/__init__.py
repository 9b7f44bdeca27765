"""Networks that the training loop can train: stacks of K members with (K, B, C) logits."""
