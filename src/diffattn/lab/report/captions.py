"""What each figure shows and how far it carries; figures.py adds data, model, seeds and machine."""

CURVES = """
Held-out loss (dev) against training tokens, against the FLOPs of the algebra (forward and backward) and against wall
time, of training alone. Thin lines: seeds; dots: where each ended. Before its end every curve is on an unfinished
schedule, so only the dots compare finished trainings.
"""
FINALS = """
Final held-out loss, one dot per seed. Bars: mean and 95 % interval over seeds (Student's t, each arm by itself), a
description; the verdicts above decide. Hollow: the ruler, which is the baseline with 1.25 × tokens. Equal time reads
the curves where the fastest arm has finished. A quarter of the tokens: trainings of their own, with a full schedule.
"""
LEARNING_RATES = """
Left: mean dev loss of the sweep, on seeds of its own that are never judged; if an arm's best rate lay at an end of the
line, it could be better still. Right: every arm at the baseline's rate. Policy: {policy}.
"""
RECALL = """
A recall hit is a token that followed the same token earlier in its window and document. Differential attention was
said to help there (its paper's Table 6). Exploratory: no verdict rests on this.
"""
POSITIONS = """
Held-out loss ({split}) by position of the token, the same tokens for every arm; means over ranges that grow by a factor
of √2. A line that goes on falling uses its context. Exploratory: no verdict rests on this.
"""
EVENTS = """
Training tokens at the first evaluation (dev) with half, and with nine tenths, of the answers right. Hollow: never,
within {tokens} tokens. Such tasks jump from guessing to solved, so accuracies are shown and not averaged.
"""
LAMBDAS = """
Mean λ of each layer (over heads and tokens where λ differs between them) with its sign, one thin line per seed. Below
0 the two maps add up; at 0 the second map does nothing.
"""
MAPS = """
Rows are queries, columns keys, of one held-out passage. One scale of colour serves all maps: blue above zero, orange
below. The last map of a row is what multiplies the values: where it is orange, a token is subtracted. Where λ differs
between tokens its mean is written.
"""
