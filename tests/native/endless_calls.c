/* A function that calls itself until its stack has run over. */
int fall(int depth)
{
    volatile char room[8000];
    room[0] = (char)depth; /* the first that is touched of it is its far end */
    return fall(depth + 1) + room[0];
}
