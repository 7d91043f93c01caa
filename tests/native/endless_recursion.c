/* A recursion that goes on until the stack has run over. */
__attribute__((noinline)) long sonde_test_recur(volatile long depth)
{
    volatile char room[256];
    room[depth % (long)sizeof room] = (char)depth;
    return depth < 0 ? room[0] : sonde_test_recur(depth + 1) + room[1];
}
