"""Settings that two records must share to be compared image by image."""

SAME_IMAGES = ("data_fingerprint", "split")
"""Settings that identify the images of a record, together with their indices."""
SAME_CERTIFICATE = (*SAME_IMAGES, "way", "n", "alpha")
"""Settings that two records of certificates must share to be compared image by image; sigma may differ."""
SAME_ATTACK = (*SAME_IMAGES, "attack", "source", "scored", "votes")
"""The same for two records of attacks."""
