"""The words that sample reports are made of. All are short: they are set in large print."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PLACES = _words("""
    Athens Bergen Berlin Boston Bremen Cairo Calais Cork Delhi Denver Dover Dublin Essex Fargo Genoa Ghent Hanoi Havana
    Idaho Izmir Jakarta Kansas Kenya Kyoto Lagos Leeds Leipzig Lima Lisbon London Lyon Madrid Malta Manila Miami Milan
    Nairobi Naples Nevada Norway Oregon Oslo Ottawa Panama Paris Perth Porto Prague Quebec Rabat Riga Rome Samoa Seoul
    Sofia Sydney Texas Tokyo Tunis Turin Vienna Warsaw Yemen Zurich
""")
THEMES = _words("""
    aviation banking brewing budget climate culture customs defence energy farming fashion finance fishing forestry
    freight gaming health housing industry justice labour leisure lending media mining music parking pensions police
    postal railway research retail roads safety schools science shipping sport storage taxation tourism traffic welfare
    wildlife
""")
GOODS = _words("""
    almonds apples bananas barley basil beans beef bikes blankets boats bolts books boots bottles bread bricks brooms
    buckets butter buttons cables cameras candles canoes carpets cement cheese cherries clocks coal cocoa coffee copper
    cotton cups curtains diamonds dishes doors drills eggs engines fans figs flour forks garlic gates ginger glass
    gloves gold grapes guitars hammers hats honey ink iron jackets jam jars jewels kettles knives ladders lamps lead
    leather lemons lentils linen locks magnets maize marble mats melons milk mirrors motors mustard nails needles nickel
    nuts oats oil olives onions oranges oysters paint paper peaches pears pencils pepper pianos pins pipes plums pumps
    quilts radios rice ropes rubber salmon salt sand scarves seeds shoes silk silver soap socks steel sugar tables tea
    tiles tin toys tractors trays tyres vases violins wagons watches wax wheat wine wires wool yarn zinc
""")
MEASURES = _words("""
    assets bonds claims costs credit debts demand deposits duties exports fees fines funds gains grants imports income
    levies loans losses margins orders output permits prices profits rents returns sales savings shares staff stocks
    supply tariffs taxes tenders tolls volume wages
""")
SUBJECTS = _words("""
    actors bakers bankers builders buyers chemists clerks coaches cooks doctors drivers editors farmers fishers guards
    hunters judges lawyers makers mayors miners nurses owners painters pilots planners players poets porters sailors
    sellers singers students tailors teachers tenants traders unions voters workers
""")
VERBS = _words("""
    agreed appealed argued arrived borrowed changed cheered competed crossed declined doubled explored failed gathered
    gained hesitated improved invested joined left listened marched merged moved objected paused prayed protested
    rallied rebelled rested retired returned shrank signed slowed stayed stopped suffered travelled trained voted waited
    warned withdrew worried
""")

WORDS = PLACES + THEMES + GOODS + MEASURES + SUBJECTS + VERBS
