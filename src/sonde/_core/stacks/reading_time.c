/* How long reading a stack may take, by how long it usually takes on this machine.
 *
 * A reading that took long was interrupted, maybe between two copies, and its thread had the time to
 * leave its frames and come back by another way. System calls differ between machines by a factor of
 * five, so what is long is learnt here.
 */
#include "stacks/reading_time.h"

/* Copying the top takes a few dozen nanoseconds of a system call of one microsecond. */
#define SLOW_NS 2500
#define SLOWEST_NS 20000
#define FIRST_READINGS 64
#define SPLIT_NS 600 /* one more system call takes this, or more where they are slow */
#define COPY_NS 200  /* what of the usual time is no system call */
#define STILL_NS 1000000000 /* longer than any thread stands still for us */

typedef struct {
    int64_t ns;   /* the median */
    int readings; /* the first ones change it in large steps */
} usual_time;

static usual_time usual_top = {800, 0};
static usual_time usual_rest = {1200, 0};
static int is_still; /* what is read cannot change */

void sonde_reading_stands(int stands) { is_still = stands; }

static void learn(usual_time *usual, int64_t took_ns)
{
    int64_t step_ns = usual->readings < FIRST_READINGS ? usual->ns / 16 : 8;
    usual->readings += usual->readings < FIRST_READINGS;
    usual->ns += took_ns > usual->ns ? step_ns : -step_ns;
}

/* Strict readings are split in two system calls. */
static int64_t split_ns(void)
{
    return usual_top.ns - COPY_NS > SPLIT_NS ? usual_top.ns - COPY_NS : SPLIT_NS;
}

/* Three times the median; in strict mode hardly longer than usual. */
int64_t sonde_reading_top_limit(int is_strict)
{
    if (is_still)
        return STILL_NS;
    if (is_strict)
        return usual_top.ns * 9 / 8 + split_ns();
    int64_t most_ns = 3 * usual_top.ns;
    return most_ns < SLOW_NS ? SLOW_NS : most_ns > SLOWEST_NS ? SLOWEST_NS : most_ns;
}

void sonde_reading_top_took(int64_t took_ns) { learn(&usual_top, took_ns); }

/* Where system calls are slow, the rest takes more than half of the top's limit, every time: a limit in
 * strict mode that asks for less than usual would let no new stack of some depth ever be believed. */
int64_t sonde_reading_rest_limit(int is_strict, int64_t took_ns, int64_t more_ns)
{
    int64_t least_ns = more_ns / 4; /* what its size takes at least */
    int64_t most_ns = 3 * sonde_reading_top_limit(is_strict) / 2 + more_ns;
    int64_t usual_ns = (usual_rest.ns + least_ns) * 9 / 8 + 2 * split_ns();
    if (!is_strict)
        learn(&usual_rest, took_ns - least_ns);
    return usual_ns > most_ns && usual_ns < SLOWEST_NS ? usual_ns : most_ns;
}
