/* Damaged files: whatever the bytes say, nothing outside the file is touched, and what is read as
 * sound is what was written.
 *
 *   fuzz PART SECONDS SEED [CASE]
 *
 * PART is ring, intern, control, nodes or lines. Each case makes a sound file in memory, damages
 * it, asks `verify`, and if that accepts it, reads and writes all of it. The file ends at a page
 * that cannot be read. The cases are the same for the same SEED; with CASE, only that one runs.
 */
#define _GNU_SOURCE
#include "require.h"
#include "format/format.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(mem, bytes) ((void)(mem), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(mem, bytes) ((void)(mem), (void)(bytes))
#endif

enum { ROOM = 1 << 18, GUARD = 1 << 28, MAX_WORDS = SONDE_MAX_ROW_BYTES / 8 };

static uint64_t case_now; /* for the message when a case fails or crashes */
static unsigned char *room; /* ROOM bytes with GUARD bytes on both sides */

#define HOLDS(holds, format, ...) \
    REQUIRE(holds, "case %" PRIu64 ": " format, case_now, ##__VA_ARGS__)

/* ---- a file that ends where memory ends ------------------------------------------- */

typedef struct {
    unsigned char *mem; /* aligned like a mapped file, as far as the core relies on it */
    size_t bytes;
} image;

/* Make everything but the file inaccessible. */
static void fence(const image *file)
{
    ASAN_POISON_MEMORY_REGION(room, ROOM);
    ASAN_UNPOISON_MEMORY_REGION(file->mem, file->bytes);
}

static image place(size_t bytes)
{
    ASAN_UNPOISON_MEMORY_REGION(room, ROOM);
    HOLDS(bytes <= ROOM, "there is no room for %zu bytes", bytes);
    image file = {room + ROOM - (bytes + 7) / 8 * 8, bytes};
    memset(file.mem, 0, bytes);
    return file;
}

/* Return the same file with another length: cut, or followed by zeros. */
static image resize(image file, size_t bytes)
{
    unsigned char *copy = malloc(file.bytes + 1);
    memcpy(copy, file.mem, file.bytes);
    image moved = place(bytes);
    memcpy(moved.mem, copy, bytes < file.bytes ? bytes : file.bytes);
    free(copy);
    return moved;
}

/* ---- damage ------------------------------------------------------------------------------ */

static uint64_t draw_value(uint64_t *random, uint64_t bytes)
{
    static const uint64_t edges[] = {
        0, 1, 2, 3, 7, 8, 15, 16, 24, 64, 255, 256, 4095, 4096, 4097, 8192, 1u << 20, 1u << 28,
        (1u << 28) + 1, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 1ull << 40,
        (1ull << 40) + 1, 1ull << 41, 0x7ffffffffffffffe, 0x7fffffffffffffff,
        0x8000000000000000, 0xfffffffffffffffe, 0xffffffffffffffff,
    };
    uint64_t pick = draw(random) % 40;
    if (pick < sizeof edges / sizeof *edges)
        return edges[pick];
    uint64_t value = draw(random), shift = draw(random) % 64;
    return pick < 36 ? bytes + value % 17 - 8 : value >> shift;
}

static void flip_bits(image *file, uint64_t *random, size_t within)
{
    for (uint64_t times = 1 + draw(random) % 8; times > 0; times--) {
        uint64_t bit = draw(random) % (within * 8);
        file->mem[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

static void set_field(image *file, uint64_t *random, size_t within)
{
    size_t width = draw(random) % 2 ? 4 : 8;
    size_t at = draw(random) % within / width * width;
    uint64_t value = draw_value(random, file->bytes);
    if (at + width <= file->bytes)
        memcpy(file->mem + at, &value, width);
}

/* Copy, or blank, a stretch of the file. */
static void splice(image *file, uint64_t *random)
{
    size_t step = draw(random) % 2 ? 8 : 1;
    size_t most = draw(random) % 2 ? 64 : file->bytes;
    size_t length = 1 + draw(random) % most;
    size_t from = draw(random) % file->bytes / step * step;
    size_t to = draw(random) % file->bytes / step * step;
    length = length > file->bytes - to ? file->bytes - to : length;
    length = length > file->bytes - from ? file->bytes - from : length;
    if (draw(random) % 2)
        memmove(file->mem + to, file->mem + from, length);
    else
        memset(file->mem + to, draw(random) % 2 ? 0 : 0xff, length);
}

static image damage(image file, uint64_t *random)
{
    for (uint64_t times = 1 + draw(random) % 3; times > 0 && file.bytes > 0; times--) {
        size_t header = file.bytes < 256 ? file.bytes : 256;
        switch (draw(random) % 8) {
        case 0: flip_bits(&file, random, file.bytes); break;
        case 1: flip_bits(&file, random, header); break;
        case 2: case 3: set_field(&file, random, header); break;
        case 4: set_field(&file, random, file.bytes); break;
        case 5: splice(&file, random); break;
        case 6: file = resize(file, draw(random) % (file.bytes + 1)); break;
        default: {
            size_t bytes = (size_t)draw_value(random, file.bytes);
            file = resize(file, bytes <= ROOM / 2 ? bytes : file.bytes + draw(random) % 64);
        }
        }
    }
    return file;
}

/* Damage a file that is mapped and open: its size stays. */
static void scribble(image *file, uint64_t *random)
{
    for (uint64_t times = 1 + draw(random) % 8; times > 0; times--) {
        size_t header = file->bytes < 256 ? file->bytes : 256;
        switch (draw(random) % 4) {
        case 0: flip_bits(file, random, file->bytes); break;
        case 1: set_field(file, random, header); break;
        case 2: set_field(file, random, file->bytes); break;
        default: splice(file, random);
        }
    }
}

/* ---- part: ring ---------------------------------------------------------------------------- */

static uint32_t make_row(uint64_t *row, uint32_t words, uint64_t ticket)
{
    uint64_t state = ticket << 8 ^ words;
    for (uint32_t i = 0; i < words; i++)
        row[i] = draw(&state);
    return (uint32_t)draw(&state);
}

static image make_ring(uint64_t *random, uint32_t *words)
{
    static const char schema[5000] = "{}";
    uint64_t row[MAX_WORDS], capacity = (uint64_t)2 << draw(random) % 5;
    uint32_t schema_bytes = draw(random) % 8 ? 2 : sizeof schema;
    uint32_t most = draw(random) % 8 ? 6 : MAX_WORDS;
    *words = 1 + (uint32_t)(draw(random) % most);
    image file = place(sonde_ring_bytes(capacity, *words * 8, schema_bytes));
    sonde_ring_handle ring;
    HOLDS(!sonde_ring_init(file.mem, file.bytes, capacity, *words * 8, schema, schema_bytes), "init");
    HOLDS(sonde_ring_open(&ring, file.mem, file.bytes) == 0, "a sound ring is refused");
    for (uint64_t rows = draw(random) % (3 * capacity), i = 0; i < rows; i++)
        HOLDS(!sonde_ring_append(&ring, row, make_row(row, *words, i)), "append");
    HOLDS(sonde_ring_open(&ring, file.mem, file.bytes) == 0, "writing rows damaged the header");
    return file;
}

/* Set the header's check as the core makes it, so that the damage behind it is reached. */
static void fix_ring(image *file)
{
    sonde_ring *ring = (sonde_ring *)file->mem;
    if (file->bytes < sizeof *ring || ring->schema_bytes > file->bytes - sizeof *ring)
        return;
    ring->check = 0;
    uint64_t parts[2] = {
        sonde_check_bytes(ring, offsetof(sonde_ring, pad0)),
        sonde_check_bytes(ring + 1, ring->schema_bytes),
    };
    ring->check = sonde_check_bytes(parts, sizeof parts);
}

static void get_row(const sonde_ring_handle *ring, uint64_t ticket, uint32_t words)
{
    uint64_t row[MAX_WORDS], right[MAX_WORDS];
    uint32_t nulls = 0;
    /* No ring gets to 2^63 rows, where sequence words begin again: there it only must not crash. */
    if (sonde_ring_get(ring, ticket, row, &nulls) != SONDE_ROW_OK || ticket >> 63)
        return;
    HOLDS(ring->row_bytes == words * 8 && make_row(right, words, ticket) == nulls &&
              !memcmp(row, right, words * 8),
          "ticket %" PRIu64 " is damaged and was read as sound", ticket);
}

static int try_ring(uint64_t *random)
{
    uint64_t row[MAX_WORDS] = {0};
    uint32_t words;
    image file = damage(make_ring(random, &words), random);
    if (draw(random) % 2)
        fix_ring(&file);
    fence(&file);
    sonde_ring_handle ring;
    int status = sonde_ring_open(&ring, file.mem, file.bytes);
    HOLDS(status == 0 || status == -EBADMSG || status == -EPROTO, "open: %d", status);
    if (status != 0)
        return 0;
    uint64_t capacity = ring.capacity, head = ring.shared->head;
    HOLDS((capacity & (capacity - 1)) == 0, "%" PRIu64 " slots", capacity);
    for (uint64_t i = 0; i < 2 * capacity; i++) {
        get_row(&ring, head - capacity + i, words);
        get_row(&ring, i, words);
        get_row(&ring, draw_value(random, file.bytes), words);
    }
    uint64_t settled = sonde_ring_settled(&ring, head - capacity, head);
    HOLDS(settled - (head - capacity) <= capacity, "settled is outside of the ring");
    /* A ring that is open already may be damaged, too: nothing may leave it. */
    scribble(&file, random);
    for (uint64_t i = 0; i < capacity; i++) {
        status = sonde_ring_append(&ring, row, 0);
        HOLDS(status == 0 || status == -EAGAIN, "append: %d", status);
    }
    sonde_ring_free_slots(&ring);
    return 1;
}

/* ---- part: intern ---------------------------------------------------------------------------- */

/* Make the text of an id, and return its length. Id 1 is empty; the others start with their id. */
static uint32_t make_text(char *text, uint32_t id)
{
    uint64_t state = id;
    uint32_t bytes = (uint32_t)(draw(&state) % 40);
    if (id == 1)
        return 0;
    memcpy(text, &id, sizeof id);
    for (uint32_t i = sizeof id; i < bytes; i++)
        text[i] = (char)draw(&state);
    return bytes < sizeof id ? sizeof id : bytes;
}

static image make_intern(uint64_t *random)
{
    uint32_t entries = 1 + (uint32_t)(draw(random) % 48);
    uint64_t data_bytes = 1 + draw(random) % 1200;
    image file = place(sonde_intern_bytes(entries, data_bytes));
    sonde_intern_handle table;
    HOLDS(!sonde_intern_init(file.mem, file.bytes, entries, data_bytes), "init");
    HOLDS(sonde_intern_open(&table, file.mem, file.bytes) == 0, "a sound table is refused");
    char text[64];
    for (uint32_t texts = (uint32_t)(draw(random) % (entries + 4)), id = 1; id <= texts; id++)
        if (sonde_intern_put(&table, text, make_text(text, id)) == 0)
            break;
    HOLDS(sonde_intern_open(&table, file.mem, file.bytes) == 0, "putting texts in damaged the header");
    return file;
}

static void fix_intern(image *file)
{
    sonde_intern *table = (sonde_intern *)file->mem;
    if (file->bytes < sizeof *table)
        return;
    table->check = 0;
    table->check = sonde_check_bytes(table, offsetof(sonde_intern, pad0));
}

static void get_text(const sonde_intern_handle *table, const image *file, uint32_t id)
{
    char right[64];
    uint32_t bytes_n = 0;
    const unsigned char *bytes = sonde_intern_get(table, id, &bytes_n);
    if (bytes == NULL)
        return;
    HOLDS(bytes >= file->mem && bytes + bytes_n <= file->mem + file->bytes, "text %u is outside",
          id);
    HOLDS(make_text(right, id) == bytes_n && !memcmp(bytes, right, bytes_n),
          "text %u is damaged and was read as sound", id);
}

static void put_texts(const sonde_intern_handle *table, uint64_t *random)
{
    char text[64];
    for (int i = 0; i < 8; i++) {
        uint32_t bytes_n = 0, bytes = make_text(text, (uint32_t)(draw(random) % 60 + 1));
        uint32_t id = sonde_intern_put(table, text, bytes);
        HOLDS(id <= table->entries, "id %u", id);
        const void *back = id == 0 ? NULL : sonde_intern_get(table, id, &bytes_n);
        HOLDS(id == 0 || (back && bytes_n == bytes && !memcmp(back, text, bytes)),
              "put returned a wrong id");
    }
}

static int try_intern(uint64_t *random)
{
    image file = damage(make_intern(random), random);
    if (draw(random) % 2)
        fix_intern(&file);
    fence(&file);
    sonde_intern_handle table;
    int status = sonde_intern_open(&table, file.mem, file.bytes);
    HOLDS(status == 0 || status == -EBADMSG || status == -EPROTO, "open: %d", status);
    if (status != 0)
        return 0;
    for (uint32_t id = 0; id <= table.entries + 1 && id < 4096; id++)
        get_text(&table, &file, id);
    for (int i = 0; i < 8; i++)
        get_text(&table, &file, (uint32_t)draw_value(random, file.bytes));
    put_texts(&table, random);
    /* A table that is open already may be damaged, too: nothing may leave it. */
    scribble(&file, random);
    put_texts(&table, random);
    return 1;
}

/* ---- part: control ------------------------------------------------------------------------ */

static int try_control(uint64_t *random)
{
    image file = place(sizeof(sonde_control));
    sonde_control *page = (sonde_control *)file.mem;
    uint32_t pid = (uint32_t)draw(random);
    uint64_t ticks = draw(random);
    HOLDS(sonde_control_init(page, file.bytes, pid, ticks) == 0, "init");
    HOLDS(sonde_control_verify(page, file.bytes) == 0, "a sound page is refused");
    file = damage(file, random);
    fence(&file);
    int status = sonde_control_verify(file.mem, file.bytes);
    HOLDS(status == 0 || status == -EBADMSG || status == -EPROTO, "verify: %d", status);
    if (status != 0)
        return 0;
    page = (sonde_control *)file.mem;
    HOLDS(page->pid == pid && page->start_ticks == ticks, "the page of another process was accepted");
    sonde_wait(&page->bell, page->bell - 1, 1000000000); /* rung since then: must not sleep */
    sonde_control_ring(page);
    return 1;
}

/* ---- nodes ------------------------------------------------------------------------- */

enum { NODES = 200 };

static int try_nodes(uint64_t *random)
{
    static uint32_t index[1024];
    image file = place(sonde_nodes_bytes(NODES));
    sonde_nodes_handle table;
    HOLDS(sonde_nodes_init(file.mem, file.bytes, NODES) == 0, "init");
    HOLDS(sonde_nodes_open(&table, file.mem, file.bytes) == 0, "a sound table is refused");
    memset(index, 0, sizeof index);
    table.index = index;
    for (uint32_t i = 0; i < NODES; i++) {
        uint32_t parent = (uint32_t)(draw(random) % (table.count + 1));
        sonde_frame_key key = {(uint32_t)draw(random) % 5, 1, (int32_t)(draw(random) % 9), 1, 7};
        uint32_t id = sonde_nodes_put(&table, parent, &key);
        HOLDS(id != 0 && sonde_nodes_put(&table, parent, &key) == id, "put");
    }
    static unsigned char sound[ROOM];
    memcpy(sound, file.mem, file.bytes);
    size_t bytes = file.bytes;
    file = damage(file, random);
    fence(&file);
    if (sonde_nodes_open(&table, file.mem, file.bytes) != 0)
        return 0;
    for (uint32_t id = 0; id <= NODES + 1; id++) {
        sonde_node node;
        if (sonde_nodes_get(&table, id, &node) != 0)
            continue;
        size_t at = SONDE_PAGE + (size_t)(id - 1) * sizeof node;
        HOLDS(at + sizeof node <= bytes && node.parent < id &&
                  memcmp(&node, sound + at, offsetof(sonde_node, samples)) == 0,
              "node %u is damaged and was read as sound", id);
    }
    /* A table that is open already may be damaged, too: nothing may leave it, or go on for ever. */
    memset(index, 0, sizeof index);
    table.index = index;
    sonde_nodes_index(&table);
    scribble(&file, random);
    for (uint32_t i = 0, parent = 0; i < 2 * NODES; i++) {
        sonde_frame_key key = {(uint32_t)draw(random) % 5, 1, (int32_t)(draw(random) % 9), 1, 7};
        parent = sonde_nodes_put(&table, parent, &key);
        HOLDS(parent <= NODES, "id %u", parent);
        if (parent != 0)
            sonde_nodes_at(&table, parent)->samples++;
    }
    return 1;
}

/* ---- lines -------------------------------------------------------------------------- */

static int try_lines(uint64_t *random)
{
    uint32_t bytes = (uint32_t)(draw(random) % 200), units = (uint32_t)(draw(random) % 300);
    image table = place((bytes + 7) / 8 * 8 + 8);
    for (uint32_t i = 0; i < bytes; i++)
        table.mem[i] = (unsigned char)draw(random);
    fence(&table);
    int32_t *lines = malloc((units + 1) * sizeof *lines);
    HOLDS(lines != NULL, "there is no memory");
    lines[units] = 77;
    sonde_lines_311(lines, units, table.mem, bytes, (int32_t)draw(random));
    sonde_lines_310(lines, units, table.mem, bytes, 1);
    HOLDS(lines[units] == 77, "a line beyond the last was written");
    free(lines);
    return 1;
}

/* ---- the cases ------------------------------------------------------------------------------ */

static void open_room(void)
{
    unsigned char *all = mmap(NULL, 2 * GUARD + ROOM, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(all != MAP_FAILED && mprotect(all + GUARD, ROOM, PROT_READ | PROT_WRITE) == 0, "mmap");
    room = all + GUARD;
}

#ifdef __SANITIZE_ADDRESS__
static void say_case(void) { fprintf(stderr, "in case %" PRIu64 "\n", case_now); }
#endif

static int (*find_part(const char *name))(uint64_t *)
{
    if (strcmp(name, "ring") == 0)
        return try_ring;
    if (strcmp(name, "intern") == 0)
        return try_intern;
    if (strcmp(name, "nodes") == 0)
        return try_nodes;
    if (strcmp(name, "lines") == 0)
        return try_lines;
    return strcmp(name, "control") == 0 ? try_control : NULL;
}

int main(int argc, char **argv)
{
    REQUIRE(argc >= 4 && find_part(argv[1]), "usage: fuzz ring|intern|control|nodes|lines SECONDS SEED [CASE]");
    int64_t deadline = sonde_clock_ns() + (int64_t)(atof(argv[2]) * 1e9);
    uint64_t seed = strtoull(argv[3], NULL, 0), accepted = 0;
#ifdef __SANITIZE_ADDRESS__
    __asan_set_death_callback(say_case);
#endif
    open_room();
    for (case_now = argc > 4 ? strtoull(argv[4], NULL, 0) : 0;; case_now++) {
        uint64_t random = seed << 40 ^ case_now;
        accepted += (uint64_t)find_part(argv[1])(&random);
        if (argc > 4 || (case_now % 64 == 0 && sonde_clock_ns() >= deadline))
            break;
    }
    printf("%" PRIu64 " damaged files, %" PRIu64 " accepted and read in full\n", case_now + 1,
           accepted);
    return 0;
}
