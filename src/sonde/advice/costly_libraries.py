"""Costly calls of libraries for the web, databases, text and the terminal."""

from __future__ import annotations

from sonde.advice.costly_calls import SHORT, WAITING, CostlyCall
from sonde.advice.costly_models import MODELS
from sonde.advice.costly_standard import STANDARD
from sonde.advice.costly_system import SYSTEM
from sonde.advice.costly_tables import TABLES

_ONE_CLIENT = "make one client at the start and use it for all requests; it keeps its connections"

SERVICES = (
    CostlyCall(
        "clients_made", "Clients or channels to a server are made again and again",
        f"{_ONE_CLIENT}: a new one reads descriptions or certificates, or begins without a "
        "connection",
        ("/requests/sessions.py:Session.__init__", "/httpx/_client.py:__init__",
         "/httpx/_client.py:Client.__init__", "/httpx2/_client.py:__init__",
         "/aiohttp/client.py:ClientSession.__init__", "/aiohttp/connector.py:__init__",
         "/boto3/session.py:", "/boto3/__init__.py:", "/botocore/session.py:",
         "/botocore/loaders.py:", "/botocore/client.py:create_client", "/redis/client.py:__init__",
         "/redis/connection.py:connect", "/pymongo/synchronous/mongo_client.py:__init__",
         "/pymongo/mongo_client.py:__init__", "/grpc/_channel.py:__init__",
         "/grpc/__init__.py:insecure_channel", "/sqlalchemy/engine/create.py:create_engine",
         "/openai/_client.py:__init__", "/anthropic/_client.py:__init__",
         "/elasticsearch/_sync/client/__init__.py:__init__", "/kafka/producer/kafka.py:__init__",
         "/confluent_kafka/__init__.py:__init__", "/pika/adapters/blocking_connection.py:__init__",
         "/googleapiclient/discovery.py:build", "/googleapiclient/discovery.py:build_from_document",
         "/docker/client.py:__init__", "/kubernetes/config/", "/asyncpg/connection.py:connect",
         "/psycopg/connection.py:connect", "/psycopg2/__init__.py:connect"), (), 25, is_once=True,
    ),
    CostlyCall(
        "sessions_anew", "Each request makes a session and a connection of its own (requests.get)",
        "make one requests.Session (httpx.Client) at the start and call its get and post: it keeps "
        "the connections open",
        ("/requests/api.py:", "/httpx/_api.py:", "/httpx2/_api.py:"), (), 40, stretch=SHORT,
    ),
    CostlyCall(
        "charset_guessed", "Guessing in which code a text is written takes much of the time",
        "name it where it is known (`response.encoding = 'utf-8'`, response.content, "
        "response.json), "
        "or guess from the first few kilobytes only",
        ("/chardet/", "/charset_normalizer/", "/requests/models.py:apparent_encoding", "/cchardet/",
         "/bs4/dammit.py:UnicodeDammit.__init__"), (), 15,
    ),
    CostlyCall(
        "redis_per_key", "One command of Redis or memcached after the other takes much of the time",
        "send many at once: mget, mset, hmget, a pipeline (`pipe = r.pipeline()`), get_many",
        ("/redis/client.py:execute_command", "/redis/client.py:Redis.execute_command",
         "/pymemcache/client/", "/memcache.py:"), (), 25, stretch=SHORT,
    ),
    CostlyCall(
        "documents_per_key",
        "One question to a document store after the other takes much of the time",
        "ask for all at once (`{'_id': {'$in': […]}}`, mget, batch_get_item), and write many with "
        "insert_many, bulk_write or helpers.bulk",
        ("/pymongo/", "/elasticsearch/", "/opensearchpy/", "/cassandra/cluster.py:execute",
         "/neo4j/", "/google/cloud/firestore"), (), 25, stretch=SHORT,
    ),
    CostlyCall(
        "grpc_in_turn", "The program waits for one call of gRPC after the other",
        "send several at once (`stub.Call.future(…)`, grpc.aio with gather), or many messages in "
        "one stream", ("/grpc/_channel.py:",), (), 40, stretch=SHORT,
        state=WAITING,
    ),
    CostlyCall(
        "queue_flushed", "The program waits until each message has arrived (flush)",
        "let the producer collect messages (linger.ms, batch.size), and flush once at the end",
        ("/kafka/producer/kafka.py:flush",), ("cimpl.Producer.flush",), 15,
    ),
    CostlyCall(
        "statements_compiled", "SQLAlchemy makes the text of statements anew each time",
        "hand values over as parameters and not as text, build statements of the same form, and "
        "keep those that are large: only a form that was seen before comes from the cache",
        ("/sqlalchemy/sql/compiler.py:",), (), 20, stretch=SHORT,
    ),
    CostlyCall(
        "statements_built",
        "Putting queries together (before they are sent) takes much of the time",
        "build a query once and change its parameters; ask once for many rows (`in_`, `__in`)",
        ("/sqlalchemy/sql/selectable.py:", "/sqlalchemy/sql/elements.py:",
         "/sqlalchemy/sql/coercions.py:", "/sqlalchemy/sql/_selectable_constructors.py:",
         "/sqlalchemy/sql/cache_key.py:", "/sqlalchemy/orm/context.py:",
         "/sqlalchemy/sql/traversals.py:", "/django/db/models/query.py:_clone",
         "/django/db/models/query.py:_chain", "/django/db/models/query.py:filter",
         "/django/db/models/query.py:exclude", "/django/db/models/query.py:annotate",
         "/django/db/models/sql/query.py:", "/django/db/models/sql/compiler.py:as_sql"), (), 25,
        stretch=SHORT,
    ),
    CostlyCall(
        "flushed_per_object", "Objects are written to the database in many small flushes",
        "add all of them, and commit once; insert many rows with one statement "
        "(`session.execute(insert(Table), rows)`); look up inside of `with session.no_autoflush`",
        ("/sqlalchemy/orm/session.py:flush", "/sqlalchemy/orm/session.py:_autoflush",
         "/sqlalchemy/orm/unitofwork.py:", "/sqlalchemy/orm/persistence.py:"), (), 25,
        stretch=SHORT,
    ),
    CostlyCall(
        "tables_reflected", "The tables of a database are read or mapped again and again",
        "reflect or declare tables once, at the start, and keep the MetaData",
        ("/sqlalchemy/engine/reflection.py:", "/sqlalchemy/orm/decl_base.py:",
         "/sqlalchemy/orm/mapper.py:__init__", "/sqlalchemy/sql/schema.py:create_all",
         "/sqlalchemy/sql/schema.py:reflect", "/django/apps/registry.py:populate"), (), 20,
        is_once=True,
    ),
    CostlyCall(
        "templates_parsed", "Templates are looked for and parsed again and again",
        "keep the template (get_template once, one jinja2.Environment), and in Django use the "
        "cached loader, which DEBUG switches off",
        ("/django/template/base.py:compile_string", "/django/template/base.py:Template.__init__",
         "/django/template/base.py:tokenize", "/django/template/base.py:parse",
         "/django/template/loaders/", "/jinja2/loaders.py:get_source", "/mako/lexer.py:",
         "/mako/template.py:__init__", "/jinja2/environment.py:Environment.__init__"), (), 15,
        stretch=SHORT,
    ),
    CostlyCall(
        "templates_rendered", "Rendering templates takes much of the time",
        "keep pieces that are the same (the cache tag), do not go through thousands of rows in a "
        "template, and use Jinja2, which is several times faster than Django's templates",
        ("/django/template/base.py:render", "/django/template/base.py:render_annotated",
         "/django/template/loader.py:", "/jinja2/environment.py:render",
         "/jinja2/environment.py:generate", "/mako/runtime.py:"), (), 40,
    ),
    CostlyCall(
        "addresses_reversed",
        "Working out the addresses of views (reverse, url_for) takes much time",
        "work the address out once and put the id into it, or keep it (functools.lru_cache)",
        ("/django/urls/base.py:reverse", "/django/urls/resolvers.py:_reverse_with_prefix",
         "/flask/app.py:url_for", "/flask/helpers.py:url_for", "/werkzeug/routing/map.py:build"),
        (), 20,
    ),
    CostlyCall(
        "serializers_made", "Serializers are made, or find their fields, for each object",
        "give one serializer all objects (`many=True`), use `queryset.values(…)` or plain "
        "dictionaries where nothing is checked",
        ("/rest_framework/serializers.py:get_fields", "/rest_framework/serializers.py:fields",
         "/rest_framework/serializers.py:__new__", "/rest_framework/utils/model_meta.py:",
         "/marshmallow/schema.py:__init__", "/marshmallow/schema.py:_init_fields"), (), 20,
        stretch=SHORT,
    ),
    CostlyCall(
        "objects_serialized", "Serializers and schemas, written in Python, take much of the time",
        "send fewer fields and rows (pages), use `.values()` and plain dictionaries, or a library "
        "that works in C (msgspec, pydantic 2, orjson)",
        ("/rest_framework/serializers.py:to_representation", "/rest_framework/fields.py:",
         "/marshmallow/", "/cattrs/", "/pydantic/v1/"), (), 40,
    ),
    CostlyCall(
        "schemas_made", "JSON schemas or descriptions of an API are made again and again",
        "make each once, at the start, and keep it (or its text)",
        ("/pydantic/json_schema.py:", "/pydantic/main.py:model_json_schema",
         "/fastapi/openapi/utils.py:get_openapi", "/attr/_make.py:_ClassBuilder.build_class",
         "/attr/_next_gen.py:define"), (), 15, stretch=SHORT, is_once=True,
    ),
    CostlyCall(
        "fields_checked", "Each change of a model's field is checked (pydantic)",
        "collect the values and make the model once, leave validate_assignment out, or use a plain "
        "dataclass for what changes often",
        ("/pydantic/main.py:__setattr__", "/pydantic/main.py:model_copy", "/pydantic/main.py:copy",
         "/pydantic/main.py:__eq__"), (), 25,
    ),
    CostlyCall(
        "schema_checked", "Checking data against a JSON schema takes much of the time",
        "make the validator once (`Draft202012Validator(schema)`), or have the schema compiled "
        "(fastjsonschema, jsonschema-rs), which is many times faster",
        ("/jsonschema/validators.py:", "/jsonschema/__init__.py:", "/jsonschema/_keywords.py:"),
         (), 25,
    ),
    CostlyCall(
        "slow_yaml_written", "YAML is written by the slow writer, which is in Python",
        "dump with `Dumper=yaml.CSafeDumper`, or store the data as JSON",
        ("/yaml/emitter.py:", "/yaml/serializer.py:"), (), 20,
    ),
    CostlyCall(
        "yaml_read", "Reading or writing YAML takes much of the time",
        "read each file once; store data as JSON; of ruamel.yaml, `YAML(typ='safe')` works in C",
        ("/yaml/constructor.py:", "/yaml/composer.py:", "/yaml/representer.py:", "/ruamel/yaml/"),
         (),
        25,
    ),
    CostlyCall(
        "pure_python", "A library works in its slow form, which is written in Python",
        "install the form of it that is in C: a wheel for this Python (protobuf, msgpack, cbor2, "
        "multidict, yarl, rapidfuzz), fastavro in place of avro, cryptography in place of rsa, "
        "ecdsa "
        "and pyaes; unset variables that ask for Python "
        "(PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION)",
        ("/google/protobuf/internal/python_message.py:", "/google/protobuf/internal/decoder.py:",
         "/google/protobuf/internal/encoder.py:", "/msgpack/fallback.py:", "/cbor2/_decoder.py:",
         "/cbor2/_encoder.py:", "/multidict/_multidict_py.py:", "/yarl/_quoting_py.py:",
         "/avro/io.py:", "/thrift/protocol/TBinaryProtocol.py:", "/rapidfuzz/fuzz_py.py:",
         "/rapidfuzz/distance/Levenshtein_py.py:", "/rsa/", "/ecdsa/", "/pyaes/"), (), 15,
    ),
    CostlyCall(
        "messages_as_json", "Turning protobuf messages into JSON or dictionaries takes much time",
        "send the binary form (SerializeToString), and read the fields of the message itself",
        ("/google/protobuf/json_format.py:", "/google/protobuf/text_format.py:"), (), 20,
    ),
    CostlyCall(
        "keys_read", "Keys are read and checked again and again",
        "load a key once (load_pem_private_key, PyJWK) and hand over the object, not its text",
        ("/jwt/algorithms.py:prepare_key", "/cryptography/hazmat/primitives/serialization/"),
        ("cryptography.hazmat.bindings._rust.openssl.keys.load_pem_private_key",
         "cryptography.hazmat.bindings._rust.openssl.keys.load_pem_public_key",
         "cryptography.hazmat.bindings._rust.x509.load_pem_x509_certificate"), 15, stretch=SHORT,
    ),
    CostlyCall(
        "password_hashes", "Checking passwords takes much of the time",
        "this is slow on purpose: check a password once, at the login, and then a session or a "
        "token; in tests, use a fast hasher (PASSWORD_HASHERS)",
        ("/django/contrib/auth/hashers.py:", "/werkzeug/security.py:"), (), 20,
    ),
    CostlyCall(
        "soup_searched", "Searching in a document of BeautifulSoup takes much of the time",
        "find the part first and search only in it, parse with 'lxml' and a SoupStrainer, or use "
        "lxml or selectolax, which work in C",
        ("/bs4/element.py:", "/bs4/filter.py:", "/soupsieve/"), (), 25,
    ),
    CostlyCall(
        "soup_made", "BeautifulSoup makes a tree of Python objects of each document",
        "parse each document once, with 'lxml' and a SoupStrainer for the parts that are needed; "
        "lxml.html and selectolax are many times faster",
        ("/bs4/__init__.py:", "/bs4/builder/"), (), 30,
    ),
    CostlyCall(
        "documents_read", "Reading documents (Excel, Word, PDF) in Python takes much of the time",
        "convert each once, and keep the result (Parquet, text); openpyxl with `read_only=True`, "
        "pandas.read_excel with `engine='calamine'`, PDFs with pypdfium2 or pymupdf, which are "
        "many times faster",
        ("/openpyxl/", "/xlrd/", "/pypdf/", "/PyPDF2/", "/pdfminer/", "/pdfplumber/", "/docx/",
         "/pptx/"), (), 25,
    ),
    CostlyCall(
        "markup_made", "Parsers of markup or lexers are made or guessed again and again",
        "make the Markdown object or the lexer once and keep it (`reset()` between texts)",
        ("/markdown/core.py:__init__", "/markdown/core.py:build_parser",
         "/markdown/core.py:registerExtensions", "/pygments/lexers/__init__.py:",
         "/pygments/formatters/__init__.py:", "/tldextract/tldextract.py:__init__",
         "/faker/factory.py:create", "/faker/proxy.py:__init__"), (), 15, stretch=SHORT,
    ),
    CostlyCall(
        "markup_cleaned", "Cleaning or highlighting markup in Python takes much of the time",
        "keep what was made of the same text; nh3 cleans HTML many times faster than bleach",
        ("/bleach/", "/pygments/lexer.py:", "/pygments/formatters/html.py:", "/docutils/",
         "/cssutils/", "/premailer/"), (), 25,
    ),
    CostlyCall(
        "bars_drawn", "Bars of progress take much of the time",
        "put the bar around the outer loop only, count in steps of some hundreds (`update(n)`), "
        "and "
        "draw it seldom (`mininterval=1`, `refresh_per_second=2`)",
        ("/tqdm/std.py:__init__", "/tqdm/std.py:update", "/tqdm/std.py:refresh",
         "/tqdm/std.py:display", "/tqdm/std.py:close", "/tqdm/std.py:set_postfix",
         "/tqdm/std.py:set_description", "/tqdm/std.py:__iter__", "/tqdm/notebook.py:",
         "/rich/progress.py:", "/progressbar/", "/alive_progress/"), (), 20,
    ),
    CostlyCall(
        "screen_drawn", "Drawing tables and colours on the terminal takes much of the time",
        "draw a few times a second at most, and only what is seen; print plain text where nobody "
        "looks", ("/rich/", "/tabulate/", "/prettytable/", "/textual/", "/prompt_toolkit/",
                  "/click/"), (), 25,
    ),
    CostlyCall(
        "spans_sent", "Each span of a trace is sent by the thread that ends it",
        "use a BatchSpanProcessor in place of the SimpleSpanProcessor, and sample",
        ("/opentelemetry/sdk/trace/export/__init__.py:SimpleSpanProcessor.on_end",), (), 15,
    ),
    CostlyCall(
        "traced", "Measuring for a service (traces, metrics) takes much of the time",
        "sample (traces_sample_rate), make no span for each item, and keep the child of a metric "
        "(`labels(…)`) in a variable",
        ("/opentelemetry/", "/ddtrace/", "/newrelic/", "/sentry_sdk/", "/prometheus_client/",
         "/elasticapm/"), (), 20,
    ),
    CostlyCall(
        "tasks_sent", "Sending one task after the other to a broker takes much of the time",
        "give each task many items (`task.chunks(…)`), and send all with one connection "
        "(`with app.producer_pool.acquire()`)",
        ("/celery/app/task.py:apply_async", "/celery/app/task.py:delay",
         "/kombu/messaging.py:publish",
         "/celery/canvas.py:apply_async", "/rq/queue.py:enqueue", "/dramatiq/actor.py:send"), (),
         25,
        stretch=SHORT,
    ),
    CostlyCall(
        "answers_decoded", "Objects are made of each answer of Kubernetes",
        "`_preload_content=False` and json.loads of the data is many times faster; ask with a "
        "label_selector, and watch in place of listing",
        ("/kubernetes/client/api_client.py:deserialize", "/kubernetes/client/models/"), (), 20,
    ),
    CostlyCall(
        "results_cached", "Keeping results (joblib.Memory, diskcache) takes much of the time",
        "leave large arguments out of the key (`ignore=[…]`), keep small results in memory "
        "(functools.lru_cache), and cache larger steps",
        ("/joblib/memory.py:", "/joblib/hashing.py:", "/joblib/func_inspect.py:", "/diskcache/",
         "/django/core/cache/backends/", "/cachetools/"), (), 25,
    ),
    CostlyCall(
        "word_lists_read", "Lists of words are read again and again (nltk)",
        "read them once into a set: `STOP = set(stopwords.words('english'))`",
        ("/nltk/corpus/reader/wordlist.py:", "/nltk/data.py:load", "/nltk/data.py:find"), (), 15,
        is_once=True,
    ),
)  # fmt: skip
# All that is known beside what is in costly_calls.py and costly_data.py. It is only mentioned: too
# few programs have been seen to say of any of it that it is never what a program is for.
MORE = tuple(
    one._replace(is_avoidable=False) for one in (*STANDARD, *SYSTEM, *SERVICES, *TABLES, *MODELS)
)
