"""Costly calls of Python's own library, on values: text, dates, numbers, collections."""

from __future__ import annotations

from sonde.advice.costly_calls import SHORT, CostlyCall


def name_frames(path: str, functions: str) -> tuple[str, ...]:
    """Return frames of these functions of a file, as an entry names them."""
    return tuple(f"{path}:{function}" for function in functions.split())


def name_calls(owner: str, functions: str) -> tuple[str, ...]:
    """Return these C functions of a class or module, as an entry names them."""
    return tuple(f"{owner}.{function}" for function in functions.split())


STANDARD = (
    CostlyCall(
        "csv_guessed", "Guessing the form of CSV files (csv.Sniffer) takes much of the time",
        "name the delimiter, or guess from the first few kilobytes only, once for files of the "
        "same origin",
        name_frames("/csv.py", "sniff has_header _guess_delimiter _guess_quote_and_delimiter"),
        (), 20,
    ),
    CostlyCall(
        "csv_dicts", "Making a dictionary of each row of a CSV file takes much of the time",
        "read with csv.reader, and look up the numbers of the columns once; pandas.read_csv and "
        "pyarrow.csv are many times faster",
        name_frames("/csv.py", "DictReader.__next__ DictWriter.writerow DictWriter._dict_to_list"),
        (), 30,
    ),
    CostlyCall(
        "abstract_asked",
        "isinstance with an abstract class (Mapping, Number …) takes much of the time",
        "ask for the usual types first (`type(it) is dict`, isinstance(it, (dict, list))), or once "
        "for each type, in a dictionary by `type(it)`: abstract classes answer in Python",
        ("<frozen abc>:__instancecheck__", "<frozen abc>:__subclasscheck__"), (), 20,
    ),
    CostlyCall(
        "types_made", "Types such as Optional[…] are put together again and again",
        "put each together once, at the top of a module, and not in a function that runs often",
        name_frames("/typing.py",
        "inner __getitem__ _GenericAlias.__init__ copy_with Union Optional "
                    "_type_check ForwardRef.__init__ NamedTuple TypedDict NewType"), (), 20,
        stretch=SHORT,
    ),
    CostlyCall(
        "fields_listed",
        "Dataclasses are asked for their fields, or copied with a change (replace)",
        "ask for the fields once for each class, and keep their names; where many copies are made, "
        "call the class with the values, or use objects that may change",
        name_frames("/dataclasses.py",
        "fields replace _replace is_dataclass _is_dataclass_instance"),
        (), 25,
    ),
    CostlyCall(
        "enum_members", "Looking up and asking members of an Enum takes much of the time",
        "keep a dictionary of the members by their value, take `.value` out of the loop, use "
        "IntEnum or StrEnum as keys (they hash in C), and plain numbers where flags are added up "
        "and asked for often",
        ("/enum.py:",), (), 25,
    ),
    CostlyCall(
        "decimals_computed", "Decimal arithmetic takes much of the time",
        "count in whole numbers of the smallest unit, or use floats where they are exact enough",
        (), ("decimal.Decimal.", "decimal.Context."), 40,
    ),
    CostlyCall(
        "statistics_exact",
        "Functions of `statistics` compute with exact fractions, number by number",
        "use statistics.fmean, or numpy (mean, std, var) on an array; of numbers that come one by "
        "one, keep running sums",
        name_frames("/statistics.py", "mean stdev pstdev variance pvariance _sum _ss _convert "
                    "_exact_ratio harmonic_mean covariance correlation linear_regression"), (), 25,
    ),
    CostlyCall(
        "medians", "Medians and quantiles sort all numbers each time",
        "where numbers come one by one, keep them in order (bisect.insort, sortedcontainers), or "
        "two heaps; of many numbers, numpy.median and numpy.quantile with all of `q` at once",
        name_frames("/statistics.py", "median median_low median_high quantiles mode multimode"),
        (), 30,
    ),
    CostlyCall(
        "weights_added", "Drawing from a list (random.choices) takes much of the time",
        "with weights, all of them are added up at each call: draw many at once (`k=`), keep the "
        "running sum and hand it over (`cum_weights=`, itertools.accumulate once), or use "
        "numpy.random.Generator.choice for whole arrays",
        ("/random.py:choices",), (), 20,
    ),
    CostlyCall(
        "shuffled",
        "Drawing and shuffling one random number after the other takes much of the time",
        "draw many at once (numpy.random.Generator: integers, normal, permutation), and no "
        "sample or shuffle of all where a few are needed",
        name_frames("/random.py", "shuffle sample randint randrange choice uniform gauss "
                    "normalvariate expovariate triangular betavariate gammavariate"), (), 40,
    ),
    CostlyCall(
        "locale_asked", "Writing numbers by the locale, or changing it, takes much of the time",
        "set the locale once, at the start, and write numbers with format (`f'{number:,}'`) or "
        "with babel: `locale` goes through its rules for each number",
        ("/locale.py:",), ("_locale.setlocale", "_locale.localeconv"), 20,
    ),
    CostlyCall(
        "catalogs_read", "Catalogs of translations are looked for and read again and again",
        "make the translation of each language once and keep it (functools.lru_cache)",
        name_frames("/gettext.py", "find translation _expand_lang GNUTranslations._parse"), (), 15,
    ),
    CostlyCall(
        "zones_read", "Files of time zones are looked for and read again and again",
        "keep the zone (`ZoneInfo('…')` in a variable, without no_cache and clear_cache)",
        ("/zoneinfo/_common.py:", "/zoneinfo/_tzpath.py:", "/tzlocal/", "/dateutil/tz/tz.py:gettz"),
        (), 15,
    ),
    CostlyCall(
        "dates_computed", "Computing with dates takes much of the time",
        "pytz, dateutil and calendar work in Python: use zoneinfo and timedelta, convert to UTC "
        "once and compute there, and whole columns at once (numpy.datetime64, pandas)",
        ("/pytz/", "/dateutil/rrule.py:", "/dateutil/relativedelta.py:", "/dateutil/tz/",
         "/calendar.py:", "/arrow/arrow.py:", "/arrow/parser.py:", "/pendulum/", "/dateparser/"),
         (), 25,
    ),
    CostlyCall(
        "dates_written", "Writing dates as text (strftime) takes much of the time",
        "isoformat is several times faster; keep the text of the same day or second",
        (), ("datetime.datetime.strftime", "datetime.date.strftime", "time.strftime",
             "datetime.datetime.__format__", "datetime.date.__format__"), 25,
    ),
    CostlyCall(
        "mail_parsed", "Parsing or writing e-mail messages takes much of the time",
        "read only the headers where the rest is not needed (BytesHeaderParser), with "
        "`policy.compat32`, whose headers are parsed when they are asked for",
        ("/email/__init__.py:message_from", "/email/_header_value_parser.py:",
         "/email/parser.py:parse",
         "/email/parser.py:parsebytes", "/email/generator.py:", "/email/headerregistry.py:",
         "/mailbox.py:"), (), 30,
    ),
    CostlyCall(
        "slow_dom", "XML or HTML is parsed in Python",
        "xml.dom and html.parser work in Python: use xml.etree.ElementTree (iterparse for large "
        "files) or lxml, which are many times faster",
        ("/xml/dom/", "/html/parser.py:", "/html5lib/"), (), 25,
    ),
    CostlyCall(
        "tree_searched", "An XML tree is searched by path again and again",
        "go through it once (iter) and keep a dictionary by what is looked up; each find and "
        "findall with a path goes through the tree",
        ("/xml/etree/ElementPath.py:",), (), 25, stretch=SHORT,
    ),
    CostlyCall(
        "addresses_parsed", "Taking web addresses apart and putting them together takes much time",
        "take each address apart once and hand its parts on; functools.lru_cache for those that "
        "recur", ("/urllib/parse.py:", "/yarl/", "/urllib/robotparser.py:"), (), 25,
    ),
    CostlyCall(
        "networks_asked", "IP addresses are parsed or looked for in one network after the other",
        "parse each once; look up with `int(address) >> bits` in a set for each length of prefix, "
        "or with bisect in the sorted first addresses of all networks",
        ("/ipaddress.py:",), (), 20,
    ),
    CostlyCall(
        "copied_singly", "Copying single objects (copy.copy) takes much of the time",
        "call the class with the values, `dict(…)`, `list(…)` or dataclasses.replace: copy.copy "
        "goes through the protocol of pickle",
        ("/copy.py:copy",), (), 25,
    ),
    CostlyCall(
        "few_largest", "The few largest or smallest of all are looked for again and again",
        "where it is asked again after each change, keep a heap or a sorted list, and change it as "
        "the data changes; most_common of a Counter sorts all of its counts",
        (*name_frames("/heapq.py", "nlargest nsmallest"),
         *name_frames("/collections/__init__.py", "most_common")), (), 25, stretch=SHORT,
    ),
    CostlyCall(
        "list_in_order",
        "Putting elements into a long list that is in order takes much of the time",
        "each insertion moves all elements behind it: collect and sort once, or use "
        "sortedcontainers.SortedList or a heap",
        (), ("_bisect.insort_right", "_bisect.insort_left"), 25,
    ),
    CostlyCall(
        "counters_added", "Adding Counters makes a new one each time",
        "add in place: `total.update(counts)`, `total.subtract(counts)`; `+`, `-`, `&` and `|` go "
        "through all of both and copy",
        name_frames("/collections/__init__.py", "Counter.__add__ Counter.__sub__ Counter.__and__ "
                    "Counter.__or__ Counter.__pos__ Counter.__iadd__ Counter.__isub__ "
                    "Counter._keep_positive Counter.copy"), (), 25,
    ),
    CostlyCall(
        "mappings_in_python", "Look-ups in a UserDict, a ChainMap or a Mapping run in Python",
        "derive from dict where it must be a class of one's own; merge the maps of a ChainMap into "
        "one dictionary once they do not change",
        (*name_frames("/collections/__init__.py", "ChainMap.__getitem__ ChainMap.__contains__ "
                      "ChainMap.get ChainMap.__iter__ ChainMap.__len__ UserDict.__getitem__ "
                      "UserDict.__setitem__ UserDict.__contains__ UserList.__getitem__"),
         "<frozen _collections_abc>:"), (), 30,
    ),
    CostlyCall(
        "ordering_twice", "functools.total_ordering makes several calls of each comparison",
        "write all of __lt__, __le__, __gt__ and __ge__, or sort with `key=`",
        name_frames("/functools.py", " ".join(
            f"_{a}_from_{b}" for a in ("lt", "le", "gt", "ge") for b in ("lt", "le", "gt", "ge")
            if a != b)), (), 30, is_through=True,
    ),
    CostlyCall(
        "decorated_anew", "Functions are wrapped or registered again and again (functools)",
        "decorate once, at the top of a module, and not inside of a function that runs often",
        name_frames("/functools.py",
        "update_wrapper wraps _find_impl _compose_mro _c3_mro register "
                    "singledispatch lru_cache cached_property.__set_name__"), (), 15,
        stretch=SHORT,
    ),
    CostlyCall(
        "buffer_copied", "All that is in a buffer is copied again and again (getvalue)",
        "ask once at the end; of a BytesIO, getbuffer() copies nothing, and read() gives only what "
        "is new", (), ("_io.BytesIO.getvalue", "_io.StringIO.getvalue"), 20,
    ),
    CostlyCall(
        "slow_base", "base32, base85 and Ascii85 are written in Python",
        "base64 (b64encode, urlsafe_b64encode) and hex are in C, and many times faster",
        name_frames("/base64.py", "b85encode b85decode a85encode a85decode _85encode b32encode "
                    "b32decode _b32encode _b32decode b32hexencode"), (), 25,
    ),
    CostlyCall(
        "literals_read", "Data is read as if it were Python source (ast.literal_eval)",
        "write and read the data as JSON, which is many times faster",
        name_frames("/ast.py", "literal_eval"), (), 20,
    ),
    CostlyCall(
        "words_split", "Splitting or filling in text with shlex or string.Template takes much time",
        "str.split or one regular expression where nothing is quoted; f-strings and str.format in "
        "place of Template and Formatter, which work in Python",
        ("/shlex.py:", *name_frames("/string.py", "Template.substitute Template.safe_substitute "
                                    "Formatter.format Formatter.vformat Formatter._vformat")),
        (), 30,
    ),
    CostlyCall(
        "unicode_asked", "Normalising letters or asking about them takes much of the time",
        "ask `text.isascii()` first, normalise each text once, and replace letters with one "
        "str.translate whose table is made once",
        (), ("unicodedata.normalize", "unicodedata.category", "unicodedata.combining",
             "unicodedata.name"), 30,
    ),
)  # fmt: skip
