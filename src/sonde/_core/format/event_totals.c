/* The file of sums and open regions: see event_totals.h. */
#include "format/event_totals.h"

#include <errno.h>
#include <string.h>

static const char totals_magic[8] = {'S', 'O', 'N', 'D', 'E', 'E', 'V', 'T'};

enum { TRIES = 1000 };

uint64_t sonde_totals_bytes(void)
{
    return SONDE_PAGE + (uint64_t)SONDE_TOTALS_SUMS * sizeof(sonde_sum) +
           (uint64_t)SONDE_TOTALS_OPEN * sizeof(sonde_open);
}

static uint32_t header_check(const sonde_totals *totals)
{
    sonde_totals copy;
    memcpy(&copy, totals, offsetof(sonde_totals, pad0));
    copy.check = 0;
    return sonde_check_bytes(&copy, offsetof(sonde_totals, pad0));
}

int sonde_totals_init(void *mem, uint64_t mem_bytes)
{
    if (mem_bytes < sonde_totals_bytes())
        return -EINVAL;
    sonde_totals *totals = mem;
    memcpy(totals->magic, totals_magic, sizeof totals_magic);
    totals->version = SONDE_FORMAT_VERSION;
    totals->header_bytes = SONDE_PAGE;
    totals->sums = SONDE_TOTALS_SUMS;
    totals->open = SONDE_TOTALS_OPEN;
    totals->sum_bytes = sizeof(sonde_sum);
    totals->open_bytes = sizeof(sonde_open);
    totals->check = header_check(totals);
    return 0;
}

int sonde_totals_verify(const void *mem, uint64_t mem_bytes)
{
    const sonde_totals *totals = mem;
    if (mem_bytes < sizeof *totals || memcmp(totals->magic, totals_magic, sizeof totals_magic))
        return -EBADMSG;
    if (totals->version > SONDE_FORMAT_VERSION)
        return -EPROTO;
    if (totals->check != header_check(totals) || mem_bytes < sonde_totals_bytes() ||
        totals->header_bytes != SONDE_PAGE || totals->sums != SONDE_TOTALS_SUMS ||
        totals->open != SONDE_TOTALS_OPEN || totals->sum_bytes != sizeof(sonde_sum) ||
        totals->open_bytes != sizeof(sonde_open))
        return -EBADMSG;
    return 0;
}

sonde_sum *sonde_totals_sum(const sonde_totals *totals, uint64_t at)
{
    return (sonde_sum *)((char *)totals + SONDE_PAGE) + at;
}

sonde_open *sonde_totals_open(const sonde_totals *totals, uint32_t slot)
{
    return (sonde_open *)sonde_totals_sum(totals, SONDE_TOTALS_SUMS) + slot;
}

/* ---- one entry ------------------------------------------------------------------ */

static uint32_t check_sum(const sonde_sum *sum)
{
    const uint64_t *words = (const uint64_t *)sum;
    uint64_t state = sonde_check_begin(words[1]);
    state = sonde_check_word(state, 0, sum->kind);
    for (uint32_t i = 3; i < sizeof *sum / 8 - 1; i++)
        state = sonde_check_word(state, i, words[i]);
    return sonde_check_end(state);
}

static uint32_t check_open(const sonde_open *open)
{
    const uint64_t *words = (const uint64_t *)open;
    uint64_t state = sonde_check_begin(open->is_open);
    for (uint32_t i = 2; i < sizeof *open / 8 - 1; i++)
        state = sonde_check_word(state, i, words[i]);
    return sonde_check_end(state);
}

static void begin(uint64_t *seq)
{
    sonde_store_relaxed(seq, sonde_load_relaxed(seq) | 1);
    /* The busy number is visible before any byte of the change. */
    sonde_fence_release();
}

static void end(uint64_t *seq)
{
    /* Release: every byte of the change is stored before the number that says it is complete. */
    sonde_store_release(seq, sonde_load_relaxed(seq) + 1);
}

void sonde_sum_begin(sonde_sum *sum) { begin(&sum->seq); }
void sonde_open_begin(sonde_open *open) { begin(&open->seq); }

void sonde_sum_end(sonde_sum *sum)
{
    sum->check = check_sum(sum);
    end(&sum->seq);
}

void sonde_open_end(sonde_open *open)
{
    open->check = check_open(open);
    end(&open->seq);
}

/* Copy `bytes` that all belong to one state. */
static int copy(const uint64_t *seq, const void *from, void *to, size_t bytes)
{
    for (int i = 0; i < TRIES; i++) {
        /* Acquire: the number that says "complete" is read before the bytes it vouches for. */
        uint64_t before = sonde_load_acquire(seq);
        memcpy(to, from, bytes);
        /* The bytes are read before the number is read again; pairs with the writer's fence. */
        sonde_fence_acquire();
        if (!(before & 1) && sonde_load_relaxed(seq) == before)
            return 0;
    }
    return -EAGAIN;
}

int sonde_sum_read(const sonde_sum *from, sonde_sum *to)
{
    int status = copy(&from->seq, from, to, sizeof *to);
    if (status == 0 && (to->check != check_sum(to) || to->kind >= SONDE_EVENT_KINDS))
        status = -EBADMSG;
    return status;
}

int sonde_open_read(const sonde_open *from, sonde_open *to)
{
    int status = copy(&from->seq, from, to, sizeof *to);
    if (status == 0 && to->seq != 0 && (to->check != check_open(to) || to->kind > SONDE_EVENT))
        status = -EBADMSG;
    return status;
}
