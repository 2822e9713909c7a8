"""The numbers that the paper and its review thread report, each with its source."""

from dataclasses import dataclass

PAPER = "arXiv 2505.17282"
THREAD = "public review thread of arXiv 2505.17282"

# Twenty equal bins over [-1, 14/15], whose centres are the published -0.95 ... 0.89.
BIN_CENTRES = tuple(-1 + (14 / 15 + 1) * (k + 0.5) / 20 for k in range(20))


@dataclass(frozen=True)
class Curve:
    """A published curve of token values.

    Attributes:
        name: model and quantity.
        quantity: "Ev" or "Ep", the column of ours that it is held against.
        centres: x of every point.
        values: y of every point.
        source: where it is published.
    """

    name: str
    quantity: str
    centres: tuple[float, ...]
    values: tuple[float, ...]
    source: str


@dataclass(frozen=True)
class Number:
    """A published number."""

    value: float
    name: str
    source: str


# fmt: off
MLP_EV = Curve("MLP, E·v", "Ev", BIN_CENTRES, (
    .13, .24, .06, .09, .04, .10, .01, .04, -.01, .03, .06, .11, .18, .24, .34, .44, .57, .72, .87, 1.40,
), f"{THREAD}, bin means of the MLP")
MLP_EP = Curve("MLP, E·p", "Ep", BIN_CENTRES, (
    4.76, 4.61, 3.26, 3.08, 2.80, 2.06, 1.60, 1.43, .89, .67,
    .59, .71, 1.11, 1.61, 2.02, 2.30, 3.28, 3.39, 4.84, 6.10,
), f"{THREAD}, bin means of the MLP")
TWO_LAYER_EP = Curve("two layers with weights, E·W2 p", "Ep", BIN_CENTRES, (
    15.47, 7.37, 7.79, 4.64, 3.68, 1.60, .68, -.61, -2.22, -2.80,
    -3.92, -3.18, -2.23, -1.43, -.15, .29, 3.21, 2.98, 7.90, 12.44,
), f"{THREAD}, bin means of the two-layer model with W1 and W2")
TWO_LAYER_EV = Curve("two layers with weights, E·v", "Ev", BIN_CENTRES, (
    -1.07, -1.14, -.82, -.69, -.58, -.65, -.53, -.44, -.18, -.13,
    .01, .11, .26, .39, .54, .63, .81, .73, .61, .93,
), f"{THREAD}, bin means of the two-layer model with W1 and W2")
YELP_CLASS_2 = (
    -42, -27, -51, -21, -41, -42, -42, -36, 18, 36, 31, 56, 44, 23, 45, 43, 63, 81, 54,
)
YELP_CLASS_4 = (
    -65, -66, -37, -33, -31, -31, -26, -23, -22, -0.6, 32, 28, 31, 29, 19, 30, 42, 34, 21,
)
# fmt: on


def evenly(low: float, high: float, count: int) -> tuple[float, ...]:
    """List `count` numbers from low to high at equal distances."""
    return tuple(low + (high - low) * k / (count - 1) for k in range(count))


# Only the first and the last x of these rows are published.
YELP_EV_2 = Curve(
    "Yelp, four classes, E·v_2",
    "Ev",
    evenly(-0.026, 0.032, 19),
    tuple(map(float, YELP_CLASS_2)),
    f"{THREAD}, rows of the four-class model on Yelp, class 2",
)
YELP_EV_4 = Curve(
    "Yelp, four classes, E·v_4",
    "Ev",
    evenly(-0.021, 0.021, 19),
    tuple(map(float, YELP_CLASS_4)),
    f"{THREAD}, rows of the four-class model on Yelp, class 4",
)
CURVES = (MLP_EV, MLP_EP, TWO_LAYER_EP, TWO_LAYER_EV, YELP_EV_2, YELP_EV_4)

STD_RATIO_EV = Number(8.0, "spread of E·v, trained to the end ÷ one step", THREAD)
STD_RATIO_EP = Number(6.0, "spread of E·p, trained to the end ÷ one step", THREAD)
FROZEN_ACCURACY = Number(0.72, "test accuracy, E at its random start", THREAD)
FROZEN_LOSS = Number(0.6, "loss, E at its random start", THREAD)
TRAINED_ACCURACY = Number(0.95, "test accuracy, all trained", THREAD)
TRAINED_LOSS = Number(0.1, "loss, all trained", THREAD)
LAW_POWER = Number(
    -0.5, "power of d in the error of the one-step law", f"Lemma 4.1 of {PAPER}; K classes: {THREAD}"
)
NUMBERS = (
    STD_RATIO_EV, STD_RATIO_EP, FROZEN_ACCURACY, FROZEN_LOSS, TRAINED_ACCURACY, TRAINED_LOSS, LAW_POWER,
)  # fmt: skip

FIGURES = f"Figures 1-3 of {PAPER}: E·p is U-shaped and E·v increasing in the posterior difference"
