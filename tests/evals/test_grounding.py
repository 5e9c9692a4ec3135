"""What counts as grounded, as invented and as an abstention, answer by answer."""

import pytest

from diffattn.evals.grounding import claim, judge, judge_statement, paraphrases, said, statements

CONTEXT = "Balodan's colour is red. Balodan's age is 42. Korimar's room is 142. Korimar's colour is blue."


@pytest.mark.parametrize(
    ("text", "question", "answers", "kind"),
    [
        ("  RED \t", "Balodan's colour?", ("red",), "grounded"),
        (" Balodan’s colour is red.", "Balodan's colour?", ("red",), "grounded"),
        (" Answer: red, unknown otherwise", "Balodan's colour?", ("red",), "grounded"),
        (" blue or red", "Balodan's colour?", ("red",), "misread"),
        (" blue. Korimar's room", "Balodan's colour?", ("red",), "misread"),
        (" reddish", "Balodan's colour?", ("red",), "absent"),
        (" 142", "Balodan's age?", ("42",), "misread"),
        (" 42.5", "Balodan's age?", ("42",), "absent"),
        (" -42", "Balodan's age?", ("42",), "absent"),
        (" −42", "Balodan's age?", ("42",), "absent"),
        (" .42", "Balodan's age?", ("42",), "absent"),
        (" ...42", "Balodan's age?", ("42",), "grounded"),
        (" 420", "Balodan's age?", ("42",), "absent"),
        (" Forty-two years", "Balodan's age?", ("42",), "grounded"),
        (" unknown, perhaps red", "Balodan's colour?", ("red",), "grounded"),
        (" The text does not say.", "Balodan's pet?", (), "abstained"),
        (" I'm not sure", "Balodan's pet?", (), "abstained"),
        (" red", "Balodan's pet?", (), "misread"),
        (" Balodan's colour is", "Balodan's colour?", ("red",), "none"),
        (" ...", "Balodan's colour?", ("red",), "none"),
    ],
)
def test_formatting_is_judged_as_documented(text: str, question: str, answers: tuple[str, ...], kind: str) -> None:
    assert judge(text, CONTEXT, question, answers) == kind


@pytest.mark.parametrize(
    "text",
    [
        "The text does not mention it.",
        "The text doesn’t mention Balodan's pet.",
        "The passage does not specify.",
        "There is no mention of it.",
        "I have no idea.",
        "Not provided.",
        "not found",
        "not available",
        "Not enough information.",
        "It is not in the context.",
        "It isn't stated.",
        "It was never said.",
        "It has not been explicitly mentioned.",
        "It is not clear.",
        "It cannot be determined from the text.",
        "I could not find it.",
        "I am unable to tell.",
        "The article says nothing about it.",
        "nobody knows",
        "No one knows.",
        "None",
        "N/A",
        "unknown",
        "Balodan's pet is unknown.",
        "Probably not stated.",
        "I do not know, I guess.",
        "Unknown: the colour is red.",
    ],
)
def test_usual_ways_to_abstain_are_abstentions(text: str) -> None:
    assert judge(text, CONTEXT, "Balodan's pet?", ()) == "abstained"
    # The same where the context would answer.
    assert judge(text, CONTEXT, "Balodan's pet?", ("cat",)) == "abstained"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("not red", "absent"),
        ("He does not have a pet", "absent"),
        ("Not in the kitchen", "absent"),
        ("No", "absent"),
        ("none but a cat", "absent"),
        ("blue, which is not stated", "misread"),
        ("It is not clear, but perhaps 42.", "misread"),
        ("I do not know, probably a walrus", "absent"),
        # A name that begins like an abstention, and one that the text does not have.
        ("The unknown soldier", "misread"),
        ("The unknown sailor", "abstained"),
    ],
)
def test_an_answer_that_names_a_value_is_no_abstention(text: str, kind: str) -> None:
    assert judge(text, f"{CONTEXT} Here lies the unknown soldier.", "Balodan's pet?", ()) == kind


def test_an_accepted_answer_counts_before_an_abstention() -> None:
    for answer in ("none", "not guilty", "unknown soldier", "not stated"):
        assert judge(f" The answer is {answer}.", CONTEXT, "What of Balodan?", (answer,)) == "grounded"
    assert judge(" It is not clear, but perhaps 42", CONTEXT, "Balodan's age?", ("42",)) == "grounded"
    question = "Which state is not known for rain?"
    assert judge(" The state not known for rain is Texas", "Texas. Ohio", question, ("Ohio",)) == "misread"


def test_a_word_has_its_accents_and_vowel_signs() -> None:
    context = "Beyonce\u0301 at −4 degrees; भाषा हिन्दी है"
    assert judge("Beyoncé", context, "Who?", ("Beyonce\u0301",)) == "grounded"
    assert judge("-4 degrees", context, "How cold?", ("−4",)) == "grounded"
    # The same consonants with other vowels.
    assert judge("हान्दू", context, "भाषा?", ("हिन्दी",)) == "absent"


def test_what_is_claimed_is_the_guess() -> None:
    assert said(claim(" Not stated, perhaps blue.", "Balodan's colour?"), "Balodan's colour?") == ["blue"]
    assert claim(" blue, perhaps red", "Balodan's colour?") == " blue, perhaps red"
    assert claim(" unknown, perhaps", "Balodan's colour?") == " unknown, perhaps"


def test_statements_that_deny_are_abstentions() -> None:
    text = "Balodan's pet is unknown. Balodan's pet is none. Balodan's pet is unspecified. Balodan's pet is not told."
    assert {judge_statement(one, {}) for one in statements(text)} == {"abstained"}
    assert judge_statement(("balodan", "pet", "cat"), {}) == "absent"


def test_ways_to_say_the_same_are_lines_that_exclude_each_other() -> None:
    assert set(paraphrases("red", "Balodan's colour?")) == {
        *(" red\n", " red.\n", " Red\n", " Red.\n", " Balodan's colour is red.\n")
    }
    numbers = paraphrases("42", "How old is Balodan?")
    assert {" 42\n", " forty-two.\n", " Forty-two\n"} < set(numbers)
    assert len(numbers) == len(set(numbers)) == 8
    assert all(judge(line, CONTEXT, "Balodan's age?", ("42",)) == "grounded" for line in numbers)
