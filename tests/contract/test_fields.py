"""Names, folders and headings decide between pages that are alike; identifiers are found by their parts."""

from __future__ import annotations

from pathlib import Path

from .pdf import write_pdf

TEXT = ["Statement of income", "The revenue of the company rose in the year.", "Capital expenditure was 1,577 million."]


def search(run, *options: str) -> list[str]:
    hits = run("search", *options, "-l", "lib", "--json").json
    return [f"{Path(hit['source']).parent.name}/{Path(hit['source']).name}" for hit in hits]


def test_the_name_of_a_file_and_its_folders_decide_between_twins(run, tmp_path):
    for company in ("acme", "zenith"):
        for year in (2017, 2018):
            write_pdf(tmp_path / "reports" / company / f"{company}_{year}_10K.pdf", [TEXT, TEXT])
    assert run("index", "reports", "-l", "lib").code == 0
    assert search(run, "zenith capital expenditure 2017", "-k", "1") == ["zenith/zenith_2017_10K.pdf"]
    assert search(run, "acme 10-K 2018 revenue", "-k", "1") == ["acme/acme_2018_10K.pdf"]
    assert len(search(run, "2018", "-k", "9", "--copies")) == 4


def test_the_name_decides_where_all_reports_mention_all_years(run, tmp_path):
    for year in range(2014, 2020):
        years = [f"{some} " * (9 - abs(some - year)) for some in range(2014, 2020)]
        pages = [["Acme statement of cash flows", f"Capital expenditure {page}", *years] for page in range(4)]
        write_pdf(tmp_path / "reports" / f"ACME_{year}_10K.pdf", [*pages, ["Acme legal notes", "Staff", *years]])
    assert run("index", "reports", "-l", "lib").code == 0
    for query in ("acme capital expenditure {}", "What was the FY{} capital expenditure of Acme?"):
        for year in (2015, 2018):
            assert set(search(run, query.format(year), "-k", "4")) == {f"reports/ACME_{year}_10K.pdf"}, (query, year)


def test_the_first_lines_are_the_heading_of_a_page_without_large_lines(run, tmp_path):
    text = ["The tax of the group and other lines follow,", "as they do in reports."]
    pages = [["Balance sheet", *text, "Statement of cash flows"], ["Statement of cash flows", *text, "Balance sheet"]]
    write_pdf(tmp_path / "in" / "report.pdf", pages)
    run("index", "in", "-l", "lib", "-q")
    hits = run("search", "cash flows", "-l", "lib", "--json").json
    assert [hit["page"] for hit in hits] == [2, 1]
    assert hits[0]["score"] > 1.05 * hits[1]["score"]


def test_hits_say_where_they_matched(run, tmp_path):
    write_pdf(tmp_path / "in" / "acme" / "report_2018.pdf", [TEXT])
    write_pdf(tmp_path / "in" / "zenith" / "notes.pdf", [["Ships sail.", "They carry cargo.", "Every year."]])
    run("index", "in", "-l", "lib", "-q")
    fields = {}
    for query in ("acme 2018", "income expenditure", "zenith cargo", "1577"):
        fields[query] = run("search", query, "-l", "lib", "--json", "-k", "1").json[0]["fields"]
    assert fields["acme 2018"] == ["name", "folder"]
    assert fields["income expenditure"] == ["heading", "text"]
    assert fields["zenith cargo"] == ["folder", "text"]
    assert fields["1577"] == ["text"]
    assert "page 1  in folder, text" in run("search", "zenith cargo", "-l", "lib", "-k", "1").out


def test_a_renamed_file_is_found_by_its_new_name(run, tmp_path):
    write_pdf(tmp_path / "in" / "a" / "draft.pdf", [TEXT])
    write_pdf(tmp_path / "in" / "b" / "other.pdf", [["Ships sail."]])
    run("index", "in", "-l", "lib", "-q")
    assert search(run, "draft") == ["a/draft.pdf"]
    (tmp_path / "in" / "a" / "draft.pdf").rename(tmp_path / "in" / "b" / "summary_FY2018.pdf")
    summary = run("index", "in", "-l", "lib", "--json").json
    assert (len(summary["moved"]), summary["pages"]) == (1, 0)  # no page was read
    assert search(run, "draft") == []
    assert search(run, "summary 2018") == search(run, "fy2018") == ["b/summary_FY2018.pdf"]


def test_identifiers_and_numbers_are_found_in_every_style(run, tmp_path):
    lines = ["Results of FY2018 and Q3FY22", "Form 10-K of the group", "The total is 1,577 in all", "call getUserName"]
    write_pdf(tmp_path / "in" / "page.pdf", [lines])
    write_pdf(tmp_path / "in" / "none.pdf", [["Ships sail over the sea."]])
    run("index", "in", "-l", "lib", "-q")
    for query in ("2018", "fy2018", "FY22", "10K", "10-k", "1577", "1.577,00", "user name", "getUserName"):
        assert search(run, query) == ["in/page.pdf"], query


def test_words_about_asking_do_not_count_in_a_long_question(run, tmp_path):
    form = "Please answer the following questions, and explain your answer based on the information."
    write_pdf(tmp_path / "in" / "form.pdf", [["Questionnaire", form[:44], form[44:], "Staff: how many work here?"]])
    write_pdf(tmp_path / "in" / "report.pdf", [["Staff", "The number of workers of the group was 4,711."]])
    run("index", "in", "-l", "lib", "-q")
    question = "Please answer the following question based on the information shown: number of workers in the group?"
    assert search(run, question)[0] == "in/report.pdf"
    assert search(run, "answer questions") == ["in/form.pdf"]


def test_documents_are_ranked_by_their_best_page(run, tmp_path):
    for name, num in (("fleet", 3), ("harbour", 2), ("notes", 1)):
        pages = [[f"Page {page} of {name}", "ships " * (num + page)] for page in range(num)]
        write_pdf(tmp_path / "in" / f"{name}.pdf", pages)
    run("index", "in", "-l", "lib", "-q")
    pages = run("search", "ships", "-l", "lib", "-k", "9", "--json").json
    documents = run("search", "ships", "-l", "lib", "-k", "3", "--group", "document", "--json").json
    best = {}
    for hit in pages:
        best.setdefault(hit["source"], hit)
    assert len(pages) == 6
    assert documents == list(best.values())
    assert run("search", "ships", "-l", "lib", "--group", "folder").code == 2


def test_a_page_with_all_words_beats_one_that_repeats_the_rarest(run, tmp_path):
    others = [["The report has notes on shops", f"and on shoes, number {number}"] for number in range(4)]
    others += [["Nike sells shoes in many shops"]] * 10 + [["An inventory of shops is elsewhere"]] * 10
    full = ["A report on shops.", "In the year the inventory of Nike rose,", "as its turnover did."]
    write_pdf(tmp_path / "in" / "report.pdf", [*others, ["Turnover " * 10] * 5, full])
    run("index", "in", "-l", "lib", "-q")
    hits = run("search", "nike inventory turnover", "-l", "lib", "--json", "-k", "2").json
    assert [hit["page"] for hit in hits] == [26, 25]


def test_a_list_of_contents_comes_after_what_it_names(run, tmp_path):
    titles = [
        "Business",
        "Risk factors",
        "Legal proceedings",
        "Income",
        "Balance sheet",
        "Cash flows",
        "Leases",
        "Taxes",
    ]
    contents = [f"{title} . . . . {5 * number}" for number, title in enumerate(titles, 1)]
    pages = [["Notes", f"On {title.lower()} there is little to be said on this page.", title] for title in titles]
    write_pdf(tmp_path / "in" / "report.pdf", [contents, *pages])
    run("index", "in", "-l", "lib", "-q")
    for number, title in enumerate(titles, 2):
        assert run("search", title, "-l", "lib", "--json", "-k", "1").json[0]["page"] == number


def test_an_identifier_that_no_page_has_does_not_find_its_letters(run, tmp_path):
    pages = [[f"Invoice INV-2093{number} for paper", "Paid in May"] for number in range(3)]
    write_pdf(tmp_path / "in" / "invoices.pdf", [*pages, ["Notes on paper and INV numbers"]])
    run("index", "in", "-l", "lib", "-q")
    assert run("search", "INV-20931", "-l", "lib", "--json").json[0]["page"] == 2
    answer = run("search", "INV-20937", "-l", "lib")
    assert 'no page has "INV-20937"' in answer.err
    assert "no pages found" in answer.out
    assert len(run("search", "INV-20937 notes", "-l", "lib", "--json").json) == 1


def test_a_snippet_has_the_rarest_word_of_the_query(run, tmp_path):
    common = [f"The annual report of the company, line {number}, is a report." for number in range(5)]
    other = ["Shops sell many shoes, and more shoes are sold in other shops."] * 6
    write_pdf(tmp_path / "in" / "report.pdf", [*[common] * 6, [*common, *other, "Goodwill was impaired.", *other]])
    run("index", "in", "-l", "lib", "-q")
    (hit, *_) = run("search", "goodwill in the annual report of the company", "-l", "lib", "--json").json
    assert "Goodwill" in hit["snippet"]["text"]
