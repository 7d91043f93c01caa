/* c10d's flight recorder and its entries about the last collectives.
 *
 * It is asked through the function that torch's own tools use, from a thread of ours and without
 * the GIL, which its Python function would hold for tens of milliseconds. The answer is a pickle
 * of plain dicts, lists, texts and numbers. We do not ask for JSON: torch fails to make it, with
 * an exception that nobody could catch here, if a thread's name is not UTF-8, and the kernel cuts
 * names at 15 bytes, maybe inside a character.
 */
#include "collectives/collectives.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <stdbool.h>

/* A std::string, which is returned like a C struct of its size. */
typedef struct {
    char *at;
    size_t bytes;
    char small[16];
} string;

static struct {
    string (*dump)(bool collectives, bool stacks, bool active);
    string (*dump_of)(bool collectives, bool stacks, bool active, const string *backend); /* from torch 2.15 on */
    void (*free)(void *); /* operator delete */
} recorders[SONDE_RECORDERS];

/* ---- a pickle, as far as torch writes one ------------------------------------------------------- */

typedef struct {
    const char *at;
    uint32_t bytes;
} piece;

typedef struct {
    const uint8_t *at, *end;
    piece *memo; /* texts that are written once and then referred to */
    uint32_t memo_n, memo_room;
    int is_bad;
    const sonde_intern_handle *texts;
    sonde_recorder_entry entry; /* the entry that is being read */
    void (*each)(const sonde_recorder_entry *);
} pickle;

enum kind { NOTHING, NUMBER, REAL, TEXT, TRUTH, LIST, DICT, STOP };

typedef struct {
    enum kind kind;
    int64_t number;
    double real;
    piece text;
} value;

static uint64_t take(pickle *from, uint32_t bytes)
{
    uint64_t number = 0;
    if (bytes > sizeof number || (size_t)(from->end - from->at) < bytes) {
        from->is_bad = 1;
        return 0;
    }
    memcpy(&number, from->at, bytes);
    from->at += bytes;
    return number;
}

static int peek(const pickle *from) { return from->at < from->end ? *from->at : -1; }

static void remember(pickle *from, piece text)
{
    int code = peek(from);
    if (code != 'q' && code != 'r')
        return;
    from->at++;
    uint64_t place = take(from, code == 'q' ? 1 : 4);
    if (from->is_bad || place != from->memo_n) {
        from->is_bad = 1; /* torch numbers them in order */
        return;
    }
    if (from->memo_n == from->memo_room) {
        uint32_t room = from->memo_room ? from->memo_room * 2 : 256;
        piece *memo = realloc(from->memo, room * sizeof *memo);
        if (memo == NULL) {
            from->is_bad = 1;
            return;
        }
        from->memo = memo;
        from->memo_room = room;
    }
    from->memo[from->memo_n++] = text;
}

static value take_text(pickle *from)
{
    piece text = {NULL, (uint32_t)take(from, 4)};
    if (from->is_bad || (size_t)(from->end - from->at) < text.bytes) {
        from->is_bad = 1;
        return (value){.kind = STOP};
    }
    text.at = (const char *)from->at;
    from->at += text.bytes;
    remember(from, text);
    return (value){.kind = TEXT, .text = text};
}

static value recall(pickle *from, uint64_t place)
{
    if (from->is_bad || place >= from->memo_n) {
        from->is_bad = 1;
        return (value){.kind = STOP};
    }
    return (value){.kind = TEXT, .text = from->memo[place]};
}

static value take_long(pickle *from)
{
    uint32_t bytes = (uint32_t)take(from, 1);
    int64_t number = (int64_t)take(from, bytes);
    if (bytes > 0 && bytes < 8)
        number = (int64_t)((uint64_t)number << (64 - 8 * bytes)) >> (64 - 8 * bytes);
    return (value){.kind = NUMBER, .number = number};
}

static value take_real(pickle *from)
{
    uint64_t bits = __builtin_bswap64(take(from, 8));
    value read = {.kind = REAL};
    memcpy(&read.real, &bits, sizeof bits);
    return read;
}

/* Open a list or dict; its members follow until its closing code. */
static value open_box(pickle *from, enum kind kind)
{
    remember(from, (piece){NULL, 0});
    if (take(from, 1) != '(')
        from->is_bad = 1;
    return (value){.kind = kind};
}

static value take_value(pickle *from)
{
    switch ((int)take(from, 1)) {
    case 'X': return take_text(from);
    case 'h': return recall(from, take(from, 1));
    case 'j': return recall(from, take(from, 4));
    case 'K': return (value){.kind = NUMBER, .number = (int64_t)take(from, 1)};
    case 'M': return (value){.kind = NUMBER, .number = (int64_t)take(from, 2)};
    case 'J': return (value){.kind = NUMBER, .number = (int32_t)take(from, 4)};
    case 0x8a: return take_long(from);
    case 'G': return take_real(from);
    case 'N': return (value){.kind = NOTHING};
    case 0x88: return (value){.kind = TRUTH, .number = 1};
    case 0x89: return (value){.kind = TRUTH, .number = 0};
    case ']': return open_box(from, LIST);
    case '}': return open_box(from, DICT);
    default: from->is_bad = 1; return (value){.kind = STOP};
    }
}

/* Is this the end of the list or dict that has this closing code? If so, go past it. */
static int is_closed(pickle *from, int code)
{
    if (from->is_bad)
        return 1;
    if (peek(from) != code)
        return 0;
    from->at++;
    remember(from, (piece){NULL, 0});
    return 1;
}

static void skip(pickle *from, value read, int depth)
{
    if (depth > 16)
        from->is_bad = 1;
    if (read.kind != LIST && read.kind != DICT)
        return;
    while (!is_closed(from, read.kind == LIST ? 'e' : 'u'))
        skip(from, take_value(from), depth + 1);
}

/* ---- an entry --------------------------------------------------------------------------------------- */

static int is_text(value read, const char *text)
{
    return read.kind == TEXT && read.text.bytes == strlen(text) && read.text.at != NULL &&
           memcmp(read.text.at, text, read.text.bytes) == 0;
}

enum { TENSORS = 64 };

typedef struct {
    uint64_t numel[TENSORS];
    uint32_t count;
} sizes;

/* Read sizes such as [[2, 10], [3]]: the elements of each tensor. Tensors that we have no room
 * for are added to the last. */
static void take_sizes(pickle *from, value read, sizes *to)
{
    to->count = 0;
    if (read.kind != LIST)
        return;
    while (!is_closed(from, 'e')) {
        uint64_t numel = 1;
        if (take_value(from).kind != LIST)
            from->is_bad = 1;
        while (!is_closed(from, 'e'))
            numel *= (uint64_t)take_value(from).number;
        if (to->count < TENSORS)
            to->numel[to->count++] = numel;
        else
            to->numel[TENSORS - 1] += numel;
    }
}

/* Read types such as ["Float", "Float"], and return the bytes that they make with the sizes. The
 * last type counts as the type. */
static uint64_t take_bytes(pickle *from, value read, const sizes *of, int16_t *dtype)
{
    uint64_t bytes = 0;
    uint32_t at = 0;
    if (read.kind != LIST)
        return 0;
    while (!is_closed(from, 'e')) {
        value name = take_value(from);
        int found = name.kind == TEXT && name.text.at != NULL
                        ? sonde_dtype_find(name.text.at, name.text.bytes) : -1;
        if (at < of->count)
            bytes += of->numel[at++] * sonde_dtype_bytes(found);
        *dtype = (int16_t)found;
    }
    return bytes;
}

static uint32_t put_text(pickle *from, value read)
{
    if (read.kind != TEXT || read.text.bytes == 0 || read.text.at == NULL)
        return 0;
    return sonde_intern_put(from->texts, read.text.at, read.text.bytes);
}

static void take_thread(sonde_recorder_entry *entry, value read)
{
    char digits[24];
    if (read.kind != TEXT || read.text.at == NULL || read.text.bytes >= sizeof digits)
        return;
    memcpy(digits, read.text.at, read.text.bytes);
    digits[read.text.bytes] = 0;
    entry->thread = strtoull(digits, NULL, 10);
}

static void take_group(pickle *from, value name)
{
    from->entry.group = put_text(from, name);
    from->entry.group_desc = put_text(from, take_value(from));
    if (take(from, 1) != 0x86) /* a pair */
        from->is_bad = 1;
    remember(from, (piece){NULL, 0});
}

static void take_title(sonde_recorder_entry *entry, value read)
{
    if (read.kind != TEXT || read.text.at == NULL)
        return;
    size_t bytes = read.text.bytes < SONDE_TITLE ? read.text.bytes : SONDE_TITLE - 1;
    memcpy(entry->title, read.text.at, bytes);
}

static void take_field(pickle *from, value key, value read, sizes *in, sizes *out, int64_t seqs[2])
{
    sonde_recorder_entry *entry = &from->entry;
    int16_t out_dtype = -1;
    if (is_text(key, "record_id"))
        entry->id = (uint64_t)read.number;
    else if (is_text(key, "process_group"))
        take_group(from, read);
    else if (is_text(key, "thread_id"))
        take_thread(entry, read);
    else if (is_text(key, "collective_seq_id"))
        entry->seq = (uint64_t)(seqs[0] = read.number);
    else if (is_text(key, "p2p_seq_id"))
        seqs[1] = read.number;
    else if (is_text(key, "is_p2p"))
        entry->seq = (uint64_t)seqs[read.number != 0];
    else if (is_text(key, "profiling_name"))
        take_title(entry, read);
    else if (is_text(key, "time_created_ns"))
        entry->created_wall_ns = read.number;
    else if (is_text(key, "input_sizes"))
        take_sizes(from, read, in);
    else if (is_text(key, "output_sizes"))
        take_sizes(from, read, out);
    else if (is_text(key, "input_dtypes"))
        entry->given_bytes = take_bytes(from, read, in, &entry->dtype);
    else if (is_text(key, "output_dtypes"))
        entry->got_bytes = take_bytes(from, read, out, entry->dtype < 0 ? &entry->dtype : &out_dtype);
    else if (is_text(key, "duration_ms"))
        entry->device_s = read.kind == REAL ? read.real / 1e3 : -1;
    else if (is_text(key, "state"))
        entry->is_completed = (uint8_t)is_text(read, "completed");
    else if (is_text(key, "retired"))
        entry->is_over = (uint8_t)read.number;
    else
        skip(from, read, 0);
}

static void take_entry(pickle *from)
{
    sizes in = {.count = 0}, out = {.count = 0};
    int64_t seqs[2] = {0, 0};
    from->entry = (sonde_recorder_entry){.dtype = -1, .device_s = -1};
    if (take_value(from).kind != DICT)
        from->is_bad = 1;
    while (!is_closed(from, 'u')) {
        value key = take_value(from);
        take_field(from, key, take_value(from), &in, &out, seqs);
    }
    for (uint32_t i = 0; i < in.count; i++)
        from->entry.given_numel += in.numel[i];
    from->entry.is_over |= from->entry.is_completed;
    if (!from->is_bad)
        from->each(&from->entry);
}

static void take_all(pickle *from)
{
    if (take(from, 1) != 0x80)
        from->is_bad = 1;
    (void)take(from, 1);
    if (take_value(from).kind != DICT)
        from->is_bad = 1;
    while (!is_closed(from, 'u')) {
        value key = take_value(from), read = take_value(from);
        if (is_text(key, "entries") && read.kind == LIST)
            while (!is_closed(from, 'e'))
                take_entry(from);
        else
            skip(from, read, 0);
    }
}

/* ---- asking --------------------------------------------------------------------------------------------- */

static void *find(void *library, const char *name)
{
    return library == NULL || name == NULL ? NULL : dlsym(library, name);
}

int sonde_flight_recorder_open(int recorder, void *library)
{
    static const char *const names[] = {"_ZN4c10d13dump_fr_traceB5cxx11Ebbb",
                                        "_ZN4c10d15dump_nccl_traceB5cxx11Ebbb"};
    static const char *const of_names[] = {
        "_ZN4c10d13dump_fr_traceEbbbRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", NULL};
    *(void **)&recorders[recorder].dump = find(library, names[recorder]);
    *(void **)&recorders[recorder].dump_of = find(library, of_names[recorder]);
    *(void **)&recorders[recorder].free = find(library, "_ZdlPv");
    return sonde_flight_recorder_has(recorder) ? 0 : -ENOENT;
}

int sonde_flight_recorder_has(int recorder)
{
    return recorders[recorder].free != NULL && (recorders[recorder].dump != NULL || recorders[recorder].dump_of != NULL);
}

static string dump(int recorder)
{
    if (recorders[recorder].dump != NULL)
        return recorders[recorder].dump(true, false, false);
    /* The recorder that torch itself takes where none is named. A short std::string points into itself. */
    string backend = {.bytes = 4, .small = "gloo"};
    backend.at = backend.small;
    return recorders[recorder].dump_of(true, false, false, &backend);
}

int sonde_flight_recorder_ask(int recorder, const sonde_intern_handle *texts, void (*each)(const sonde_recorder_entry *))
{
    string answer = dump(recorder);
    pickle from = {.at = (const uint8_t *)answer.at, .texts = texts, .each = each};
    /* A short string lies inside the struct, which has moved; no answer is that short. */
    if (answer.bytes < sizeof answer.small)
        return -EBADMSG;
    from.end = from.at + answer.bytes;
    take_all(&from);
    free(from.memo);
    recorders[recorder].free(answer.at);
    return from.is_bad ? -EBADMSG : 0;
}
