"""What each figure shows and how far it carries; figure.py adds data, model, seeds and machine."""

DIFFERENCES = """
Arm minus baseline, a dot per seed. Bars: the interval that its sentence rests on. Shaded: the margin, if there is one.
"""
CONTRASTS = """
Rows in ink: contrasts, which are differences of two such differences.
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
Hollow: the ruler.
"""
EQUAL_TIME = """
At equal time: seeds that ended sooner stand with their last loss, slower arms are on unfinished schedules. {shared}
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
ANSWERED = """
Answers by kind of question, held out ({split}). Guess: what is right by chance where the values that stand before the
question are known, and which of them have been an answer already, but not what belongs to what: {guess} of all answers.
Bars: a seed each.
"""
BESIDE = """
{metrics}. A dot per seed, and what it is less the baseline’s of the same seed, both asked the same items; bars: mean
and 95 % interval over seeds (Student’s t), each by itself. Exploratory and unadjusted: no verdict rests on this.
"""
BESIDE_OF = {
    "needle": """
The maps: numbers written right, and behind a click those chosen among the numbers that stand in the prompt.
""",
    "many_shot": """
The curves: the same questions behind more and more labelled examples, a line per seed.
""",
    "long_context": """
The curves: what the last tokens of a passage gain when the model sees more than a sixteenth of its context, and the
mean loss up to each position. A model that is bad with little context gains more.
""",
    "quantise": """
The curves: what rounding adds to the loss of the same tokens, a line per seed.
""",
}
"""What the pictures of single tasks are."""
LAMBDAS = """
Mean λ of each layer (and of each head, where heads differ), over tokens and seeds; training goes from left to right. λ
is the weight of the map that is subtracted: at 0 it does nothing, at 1 it weighs as much as the first, below 0 (orange)
the two maps add up. dex has one map and subtracts λ times what W_D makes of its read.
"""
MAPS = """
Rows are queries, columns keys, of one held-out passage. One scale of colour serves all maps: blue above zero, orange
below. The last map of a row is what multiplies the values: where it is orange, a token is subtracted. Where λ differs
between tokens its mean is written. With more than 6 arms the last layer’s last head is drawn; report.json holds the
others.
"""
INSIDE = """
Means over heads, layers and seeds; the lowest loss stands first. Keys used: e to the entropy of a row of the map, 1
where one key has all the weight. Not convex: rows with a negative weight after division by their sum, or with a sum of
0. Outside the hull: reads that are no weighted mean of the visible values; weights whose sum is not 1 are enough. Dead
keys: no later token gives them 0.0001 of weight. Outlier channels: hidden channels that reach 6 in a quarter of the
layers and in 6 % of the places (arXiv 2208.07339). Kurtosis: of all layers together.
"""
ALLOCATION = """
How the |weights| of the maps are shared out, on average over heads, layers and seeds; what has a negative weight lies
to the left of 0.
"""
ANSWERS = """
The answer: the keys where the pair of this token and the next one stood earlier. All else is noise there; only rows
that have such a key count.
"""
NO_ANSWERS = """
This data marks no answers.
"""
CONCENTRATION = """
The keys of each row sorted by |weight|: the curve says how much of the row the heaviest key has, the two heaviest, and
so on. A curve that is high on the left belongs to attention that looks at few keys. A1 and A2 are the two maps; the
effective one is what multiplies the values.
"""
DISTANCE = """
Share of |weight| that lies so many tokens back, in bins that double (0, 1, 2 to 3, 4 to 7, ...). Where both maps have
the same profile, it is the profile that the subtraction removes.
"""
PREDICTION = """
If the second map is to cancel noise, it must know it. R² says how much of the variance of the first map’s weights on
keys that are not the answer a multiple of the second map tells: 1 all of it, 0 or less no more than their mean would.
Beside it that multiple, and the λ of the trained model, which in some arms is fixed.
"""
ALL_KEYS = """
This data marks no answers: all keys count.
"""
SIGNAL = """
Power of what is read from the answer against power of what is read from all other keys: through the first map alone,
after the subtraction, and as the norm behind it scales each row. Mean over layers and seeds in decibels (10: ten times
the power); a line that rises clears the signal.
"""
CONTRIBUTION = """
A key with much weight may have a short value: what reaches the residual stream is |A v W_O| (arXiv 2004.10102). Where
the second number is far below the first, the head looks there in order to do nothing. On the right: how large what a
head adds is beside what was there, as root mean squares.
"""
MIXING = """
Row i is what output head i multiplies its values with: a sum of all heads’ maps with the weights written. Near 0:
below a tenth of the row’s largest. A row is told by the one map that has four fifths of its mass, or by two that have
them together, the second at least as much as all others: the λ of such a pair lies between 1/8 and 1.
"""
OUTLIERS = """
The largest of all values and the weight of the tails on a few held-out windows (dev), a thin line per seed,
logarithmic. A rise along training means that a few values outgrow the rest, which makes a model hard to quantise. All
layers are taken together: where their sizes differ, kurtosis is above 3 even if each of them is normal.
"""
GRADIENTS = """
How strongly the loss would change a logit, by the attention weight that the logit has: where nearly nothing arrives, a
key that is not looked at cannot be found again. In nats per unit of a logit, the loss summed over tokens.
"""
