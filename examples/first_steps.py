"""Encode queries and pages with a tiny model that has random weights: no download.

It shows the calls and the sizes. The ranking means nothing: this model has learned nothing yet.
"""

from PIL import Image, ImageDraw

import randslot


def draw_page(text: str) -> Image.Image:
    """Draw a small page with one line of text."""
    page = Image.new("RGB", (420, 594), "white")
    ImageDraw.Draw(page).text((40, 40), text, fill="black", font_size=28)
    return page


def main() -> None:
    model = randslot.tiny("qwen3-vl")
    titles = ["Revenue by region", "Staff and pensions", "Fleet size"]
    queries = ["revenue by region", "how large is the fleet?"]

    pages = model.encode_document([draw_page(title) for title in titles])
    questions = model.encode_query(queries)
    scores = model.similarity(questions, pages)

    num, dim = pages[0].shape
    print(f"a page is {num} vectors of {dim} dimensions: {num * dim * 2} bytes in half precision")
    print("the same page in the 3B model: 4 vectors of 2048 dimensions, 16 KiB\n")
    print("MaxSim scores (untrained, so they mean nothing yet)")
    for query, row in zip(queries, scores, strict=True):
        print(f"  {query}")
        for title, score in zip(titles, row, strict=True):
            print(f"    {score:6.3f}  {title}")


if __name__ == "__main__":
    main()
