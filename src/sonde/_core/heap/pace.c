/* How many bytes lie between two samples: see pace.h.
 *
 * A sample takes 2 µs in a small loop, and 10 to 20 µs in a program whose caches are full of other things. One that
 * allocates and frees a gigabyte in a second would lose a few percent with samples that lie close enough
 * for most programs. So they lie further apart where they would cost too much for long, and each
 * stands for more. */
#include "heap/pace.h"
#include "format/ordering.h"
#include "kernel/fork.h"

#include <math.h>

#define LEAST_BYTES ((int64_t)512 << 10)
#define MOST_BYTES ((int64_t)1 << 30)
#define SHARE 0.003      /* of the time that samples may take */
#define SPARE_NS 2000000 /* that they may take at once, because there were few before */
#define LONGEST_NS 50000 /* that one takes: if it took longer, another program had the processor */
#define TURN_NS 800000000
enum { TURN = 20, QUICKEST = 2 };

static uint64_t seed; /* atomic */
SONDE_CHANGED_IN_CHILD static int64_t every; /* atomic */

static struct {
    int is_fixed; /* it was told how many bytes */
    int count;    /* samples in this turn */
    int64_t begin_ns, spent_ns;
    double spare_ns;
} turn;

void sonde_pace_begin(int64_t every_bytes, int64_t now_ns)
{
    sonde_add_relaxed(&seed, (uint64_t)now_ns);
    turn.is_fixed = every_bytes != 0;
    turn.count = 0;
    turn.begin_ns = now_ns;
    turn.spent_ns = 0;
    turn.spare_ns = SPARE_NS;
    sonde_store_relaxed(&every, every_bytes != 0 ? every_bytes : LEAST_BYTES);
}

void sonde_pace_end(void) { sonde_store_relaxed(&every, 0); }

int64_t sonde_pace_every(void) { return sonde_load_relaxed(&every); }

double sonde_pace_part(void)
{
    uint64_t z = sonde_add_relaxed(&seed, 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((double)((z ^ z >> 31) >> 12) + 0.5) * 0x1p-52;
}

int64_t sonde_pace_draw(void)
{
    int64_t mean = sonde_pace_every();
    return mean == 0 ? INT64_MAX : 1 + (int64_t)(-log(sonde_pace_part()) * (double)mean);
}

/* End a turn; return the bytes between two samples of the next one. */
static int64_t end_turn(int64_t now_ns)
{
    double due_ns = (double)(now_ns - turn.begin_ns) * SHARE, spent_ns = (double)turn.spent_ns;
    double factor = due_ns * QUICKEST > spent_ns ? spent_ns / due_ns : QUICKEST;
    turn.spare_ns = fmin(turn.spare_ns + due_ns - spent_ns, SPARE_NS);
    if (turn.spare_ns > 0)
        factor = fmin(factor, 1);
    turn.begin_ns = now_ns;
    turn.spent_ns = turn.count = 0;
    return (int64_t)fmin(fmax((double)sonde_pace_every() * factor, LEAST_BYTES), MOST_BYTES);
}

int sonde_pace_count(int64_t now_ns, int64_t own_ns)
{
    turn.count++;
    turn.spent_ns += own_ns < LONGEST_NS ? own_ns : LONGEST_NS;
    if (turn.is_fixed || (turn.count < TURN && now_ns - turn.begin_ns < TURN_NS))
        return 0;
    int64_t then = end_turn(now_ns);
    if (then == sonde_pace_every())
        return 0;
    sonde_store_relaxed(&every, then);
    return 1;
}
