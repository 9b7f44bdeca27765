"""The names of result files in the store."""

WEIGHTS = "weights.safetensors"
RECORD = "record.json"
ENTRY = "entry.json"
ARRAYS = ("train_x", "train_y", "test_x", "test_y", "superclass", "class_names", "ids")
LABELS = ARRAYS[1:2] + ARRAYS[3:]
"""What goes with images or features, whatever was made of them."""
SHARD = "features.npy"
MARGINS = ("forget", "retain", "test")
"""A network's margins on the chosen rows of an audit, by the part that they are of."""
KL_ROWS = "kl_rows.npy"
OMEGA = "omega.npy"
SKETCH = ("train", "test")
