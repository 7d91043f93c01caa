/* A word of memory that the loader fills in and may then have sealed: made read-only (RELRO). */
#ifndef SONDE_SEALED_WORD_H
#define SONDE_SEALED_WORD_H

enum { SONDE_WORD_WRITABLE, SONDE_WORD_SEALED };

/* Return which of these the word is, or -errno if it is neither: shared memory, code, not there. */
int sonde_word_look(const void *at);

/* The same for many words: read all mappings once, look words up in them, and free them. */
typedef struct sonde_mappings sonde_mappings;
sonde_mappings *sonde_mappings_read(void); /* NULL: they cannot be read */
int sonde_mappings_look(const sonde_mappings *mappings, const void *at);
void sonde_mappings_free(sonde_mappings *mappings);

/* Replace `expected` by `wanted`. The page of a sealed word is writable for just that moment, and readable all the time;
 * other threads see either value. Returns 0, -EAGAIN if the word has another value, or -errno if Linux does not allow it.
 * One call at a time: the caller holds a lock, or the GIL. */
int sonde_word_swap(void **at, int look, void *expected, void *wanted);

#endif
