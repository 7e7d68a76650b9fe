"""What summaries say of test images that a network, or the choice of its weights, has seen."""

TRAINED_ON = "images were trained on: the numbers say little of other images"
"""The end of the sentence that begins with how many."""
CHOSEN = "the images chose the epoch that was kept: the numbers are too good for other images"
SEEN_BEFORE = "a teacher, or an earlier training, may have had the images: then the numbers are too good for others"


def about_images(warning: str) -> bool:
    """Whether a warning is about the images, and so about every number that was measured on them."""
    return warning in (CHOSEN, SEEN_BEFORE) or warning.endswith(TRAINED_ON)
