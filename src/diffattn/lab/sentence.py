"""The wording of the verdicts."""


def describe_setting(
    *, parameters: int, tokens: int, corpus: str, learning_rate_policy: str, not_equal: str = "nothing"
) -> str:
    """The end of a verdict sentence: non-embedding parameters, tokens, tokens per parameter, corpus, policy, inequalities."""
    raise NotImplementedError
