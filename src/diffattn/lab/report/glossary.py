"""What a report's own words mean, a line each: those that occur in it and are not explained where they stand."""

import re

GLOSSARY = (
    ("arm", r"\barms?\b", "one of the models that are compared; data, recipe and seeds are the same for all"),
    (
        "seed",
        r"\bseeds?\b",
        "one training of every arm: a start and an order of the data. It is the unit of evidence; tokens, documents "
        "and layers are never counted as repetitions",
    ),
    ("nats", r"\bnats\b", "the unit of a loss, −ln of the probability of the right token; 1 nat is 1.44 bits"),
    (
        "SCREEN, no verdict",
        r"\bSCREEN\b",
        "3 or 4 seeds give a ranking and intervals, and are too few to call an arm better",
    ),
    (
        "BETTER, WORSE",
        r"\b(BETTER|WORSE)\b",
        "the interval, widened for the number of comparisons and of looks, leaves out 0",
    ),
    ("NO DIFFERENCE", r"\bNO DIFFERENCE\b", "the whole interval lies within the margin"),
    ("UNRESOLVED", r"\bUNRESOLVED\b", "the interval holds 0 and reaches beyond the margin: these seeds cannot tell"),
    (
        "look",
        r"\blooks?\b",
        "a number of seeds, fixed beforehand, at which there may be a verdict; seeds between two looks are exploratory",
    ),
    (
        "margin",
        r"\b[Mm]argin\b",
        "the smallest difference that matters, fixed before the first run: one that was given, else 0.43 of what 25 % "
        "more tokens bring, which is about 10 % more tokens",
    ),
    (
        "ruler",
        r"\b[Rr]uler\b",
        "the baseline with 1.25 × the tokens: a setting that does not see those cannot answer what an arm does",
    ),
    ("worth", r"\b[Ww]orth\b", "how many more or fewer tokens would change the baseline’s loss as much"),
    (
        "could see",
        r"\b[Cc]ould see\b|\bcan see\b",
        "the smallest true difference that so many seeds find with 80 % power",
    ),
    (
        "correlation over seeds",
        r"\bCorrelation, over seeds\b",
        "of an arm’s losses with the baseline’s, which share a seed’s luck; nothing rests on it",
    ),
    (
        "sign-flip p",
        r"\bSign-flip p\b",
        "share of all ways to turn signs of the seeds’ differences whose mean is as far from 0; from 6 seeds on",
    ),
    ("test, dev", r"\b(test|dev)\b", "two held-out parts: dev chooses learning rates, the report alone opens test"),
    (
        "at equal time",
        r"\b[Aa]t equal time\b",
        "the loss on dev at the moment when the slowest seed of the fastest arm had ended",
    ),
    (
        "mismatch",
        r"\b[Mm]ismatch\b",
        "parameters without embeddings above (+) or below (−) the baseline’s; below 0.5 % it is left alone",
    ),
    (
        "FLOPs of the algebra, executed",
        r"\bFLOPs\b",
        "of matrix products, forward and backward, per token at full context: the least for the function, and what "
        "the implementation does",
    ),
)
"""Word, where it occurs, meaning; in the order in which a reader meets them."""


def glossary(text: str) -> list[tuple[str, str]]:
    """Words of a report that occur in a text of it, and their meanings."""
    return [(word, meaning) for word, occurs, meaning in GLOSSARY if re.search(occurs, text)]
