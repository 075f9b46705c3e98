"""The vocabulary of sample reports. No word has more than six letters, so that each fits into one visual token."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PLACES = _words("""
    Athens Bergen Berlin Boston Bremen Cairo Calais Cork Delhi Denver Dover Dublin Essex Fargo Genoa Ghent Hanoi Havana
    Idaho Izmir Kansas Kenya Kyoto Lagos Leeds Lima Lisbon London Lyon Madrid Malta Manila Miami Milan Naples Nevada
    Norway Oregon Oslo Ottawa Panama Paris Perth Porto Prague Quebec Rabat Riga Rome Samoa Seoul Sofia Sydney Texas
    Tokyo Tunis Turin Vienna Warsaw Yemen Zurich
""")
THEMES = _words("""
    arts autumn budget canals cargo crafts crime crops dairy design energy events export family forest gaming garden
    harbor health heat hotels import labour law market media mining museum music ocean parks police postal power rail
    retail river roads safety school sport spring summer tax timber trade travel waste water winter youth
""")
GOODS = _words("""
    apples barley basil beans beef bikes boats bolts books boots bread bricks brooms butter cables canoes cement cheese
    clocks coal cocoa coffee copper cotton cups dishes doors drills eggs fans figs flour forks garlic gates ginger glass
    gloves gold grapes hats honey ink iron jam jars jewels knives lamps lead lemons linen locks maize marble mats melons
    milk motors nails nickel nuts oats oil olives onions paint paper pears pepper pianos pins pipes plums pumps quilts
    radios rice ropes rubber salmon salt sand seeds shoes silk silver soap socks steel sugar tables tea tiles tin toys
    trays tyres vases wagons wax wheat wine wires wool yarn zinc
""")
MEASURES = _words("""
    assets bonds claims costs credit debts demand duties fees fines funds gains gifts grants income levies loans losses
    orders output prices rents sales shares staff stocks supply taxes tolls values volume wages weight yields
""")
SUBJECTS = _words("""
    actors agents bakers banks boards buyers cities clerks clubs coasts cooks courts crews dukes farms firms guards
    guilds judges kings lords makers mayors mills miners monks nurses owners pilots poets ports queens scouts shops
    teams tribes unions voters women youths
""")
VERBS = _words("""
    acted agreed argued asked begged called danced dined failed gained helped hired hoped joined jumped lasted left
    lied lost merged moved opened paid paused played prayed ran rested rose shrank signed sang slept slowed smiled spoke
    stayed talked voted waited walked warned won
""")

WORDS = PLACES + THEMES + GOODS + MEASURES + SUBJECTS + VERBS
FILLERS = _words("""
    a about and are at chart compare compares describe do doing has how image in it of page report says table that the
    user was were what when where which with
""")  # of questions, and of the prompt for pages
VOCABULARY = tuple(dict.fromkeys(word.lower() for word in WORDS + FILLERS))  # the tokens of the embedded model
