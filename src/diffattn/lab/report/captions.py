"""What each figure shows and how far it carries; figures.py adds data, model, seeds and machine."""

DIFFERENCES = """
Arm minus baseline, a dot per seed. Bars: the interval that its sentence rests on. Shaded: the margin, if there is one,
within which a difference is too small to matter.
"""
EVENTS_BESIDE = """
A dot per seed: training tokens at the first evaluation with half of the answers right.
"""
CURVES = """
Held-out loss (dev) against training tokens, against the FLOPs of the algebra (forward and backward) and against wall
time, of training alone. Thin lines: seeds; dots: where each ended. Before its end every curve is on an unfinished
schedule, so only the dots compare finished trainings.
"""
FINALS = """
Held-out loss, one dot per seed.
"""
INTERVALS = """
Bars: mean and 95 % interval over seeds (Student's t, each arm by itself), a description; the verdicts above decide.
"""
RULER = """
Hollow: the ruler, which is the baseline with 1.25 × tokens.
"""
EQUAL_TIME = """
Equal time: the curves above, read when the slowest seed of the fastest arm had ended; seeds that ended sooner stand
with their last loss, slower arms are on unfinished schedules. {shared}
"""
QUARTER = """
A quarter of the tokens: trainings of their own, each with a full schedule.
"""
LEARNING_RATES = """
The sweep: mean dev loss over seeds of its own that are never judged; an arm whose best rate lay at an end of its line
could be better still. Policy: {policy}.
"""
SAME_RATE = """
Beside it, every arm of the sweep at the rate that was chosen for the baseline, a dot per seed.
"""
FAILED_RATES = """
Failed runs of the sweep: {failed}; an arm has no point at a rate where one of its seeds failed.
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
Mean λ of each layer (and of each head, where heads differ), over tokens and seeds; training goes from left to right. λ
is the weight of the map that is subtracted: at 0 it does nothing, at 1 it weighs as much as the first, below 0 (orange)
the two maps add up.
"""
MAPS = """
Rows are queries, columns keys, of one held-out passage. One scale of colour serves all maps: blue above zero, orange
below. The last map of a row is what multiplies the values: where it is orange, a token is subtracted. Where λ differs
between tokens its mean is written.
"""
