"""Small corpora that look like text: words that repeat, paragraphs, some characters beyond ASCII."""

import json
import random
from pathlib import Path

WORDS = ["the", "model", "reads", "a", "page", "while", "naïve", "öre", "猫", "waits", "for", "λ", "or", "nothing"]


def documents(count: int, seed: int = 0, words: int = 60) -> list[str]:
    """`count` different documents of about `words` words in two paragraphs."""
    draw = random.Random(seed)
    texts = []
    for number in range(count):
        half = [" ".join(draw.choices(WORDS, k=words // 2)) for _ in range(2)]
        texts.append(f"Document {number}\n\n{half[0]}.\n\n{half[1]}.\n")
    return texts


def folder_of(place: Path, texts: list[str]) -> Path:
    """One file a document."""
    place.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (place / f"{number:04d}.txt").write_text(text, encoding="utf-8")
    return place


def file_of(file: Path, texts: list[str]) -> Path:
    """One line of JSON a document."""
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return file
