"""What stands around a query and around a page in the input of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

PAPER = "paper"  # the template of the paper: a prompt around pages, and queries as they are
QUERY, PAGE, INSTRUCTION = "{query}", "{page}", "{instruction}"  # places in a prompt; an image has a token


@dataclass(frozen=True)
class Template:
    """A prompt for pages and one for queries.

    page: as the family reads it, with the place of the page in it. query: with the place of a query. instruction: for
    the place of an instruction in both. closed: whether the tokens that the tokenizer itself puts around a text are
    part of it, as of a retrieval model that pools one of them.
    """

    page: str
    query: str = QUERY
    instruction: str = ""
    closed: bool = False

    @property
    def has_raw_queries(self) -> bool:
        """Whether queries stand alone, as in the paper."""
        return self.query == QUERY and not self.closed

    @property
    def page_prompt(self) -> str:
        """What stands around a page."""
        return self.page.replace(INSTRUCTION, self.instruction)

    @property
    def query_prompt(self) -> tuple[str, str]:
        """What stands before and behind a query."""
        before, after = self.query.split(QUERY)
        return before.replace(INSTRUCTION, self.instruction), after.replace(INSTRUCTION, self.instruction)

    def instruct(self, instruction: str) -> Template:
        """Return this template with another instruction."""
        return replace(self, instruction=instruction)

    def describe(self) -> bytes:
        """Return all that vectors depend on, for a hash; of the paper's template only the page, as in all versions."""
        queries = "" if self.has_raw_queries else f"\n{self.query_prompt} {self.closed}"
        return (self.page_prompt + queries).encode()


BARE = Template("")
