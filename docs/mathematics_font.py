"""Write the font of the site's formulas, a subset of STIX Math, to docs/_static/fonts.

    python docs/mathematics_font.py STIXMath-Regular.otf

The font file is part of the Debian package fonts-stix and of STIX Fonts 1.1.1 (https://www.stixfonts.org).
The subset keeps the table MATH, from which browsers take the sizes of roots, brackets and scripts. The
licence does not allow the reserved name of the font for a subset, so the subset has another name. matplotlib
installs fonttools.
"""

import argparse
from pathlib import Path

from fontTools import subset

OUT = Path(__file__).parent / "_static" / "fonts" / "mathematics.woff"
NAME = "jaxattn Mathematics"
# Letters, Greek, punctuation, arrows, operators, brackets, and the italic, bold, script and double-struck
# letters into which MathML converts the letters of formulas.
RANGES = (
    (0x20, 0x7E), (0xA0, 0xF7), (0x391, 0x3D6), (0x2013, 0x203A), (0x2070, 0x209C), (0x210E, 0x2135),
    (0x2190, 0x2199), (0x21D0, 0x21D4), (0x2200, 0x22EF), (0x2308, 0x230B), (0x25B3, 0x25B3),
    (0x27C2, 0x27C2), (0x27E8, 0x27E9), (0x2A7D, 0x2A7E), (0x1D400, 0x1D467), (0x1D49C, 0x1D4CF),
    (0x1D538, 0x1D56B), (0x1D6A8, 0x1D6C0), (0x1D6E2, 0x1D71B),
)  # fmt: skip


def main() -> None:
    """Write the subset."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("font", type=Path, help="path of STIXMath-Regular.otf")
    options = subset.Options()
    options.flavor = "woff"
    options.layout_features = ["*"]
    options.desubroutinize = True
    options.hinting = False
    font = subset.load_font(parser.parse_args().font, options)
    chosen = subset.Subsetter(options)
    chosen.populate(unicodes=[code for low, high in RANGES for code in range(low, high + 1)])
    chosen.subset(font)
    for record in font["name"].names:
        if record.nameID in (1, 3, 4):
            record.string = NAME
        elif record.nameID == 6:
            record.string = NAME.replace(" ", "")
    subset.save_font(font, OUT, options)


if __name__ == "__main__":
    main()
