/* A library that calls a function of its own through a slot that the loader fills in. */
int inner(int value);
int outer(int value);

int inner(int value) { return value + 1; }
int outer(int value) { return inner(value) * 10; }
