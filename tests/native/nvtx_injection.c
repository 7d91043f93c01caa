/* An NVTX tool that writes down every call it gets: one line each, with the thread.
 *
 * NVTX, which is in the program, loads the library that NVTX_INJECTION64_PATH names and calls its
 * InitializeInjectionNvtx2, which puts its functions into the program's tables: those of domains
 * are in the fifth. Counters are an extension, with tables of its own. The file is
 * LISTENER_LOG, if that is set. */

#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 65536

typedef struct tables {
	size_t size;
	int (*find)(int module, void ****table, unsigned *count);
} tables;

typedef struct attributes {
	uint16_t version, size;
	uint32_t category;
	int32_t colour_type;
	uint32_t colour;
	int32_t payload_type, reserved;
	union {
		int64_t whole;
		double number;
	} payload;
	int32_t message_type;
	const char *message;
} attributes;

typedef struct extension {
	uint16_t version, size, module, compatible;
	size_t segment_count;
	struct {
		size_t number, count;
		intptr_t *functions;
	} *segments;
} extension;

typedef struct counter {
	size_t size;
	uint64_t schema;
	const char *name;
} counter;

enum { MARK = 1, START = 2, END = 3, PUSH = 4, POP = 5, CATEGORY = 8, STRING = 10, DOMAIN = 12 };
enum { COUNTERS = 4, REGISTER = 0, SAMPLE_DOUBLE = 2 };
enum { CALLBACKS = 1, DOMAINS = 5, PAYLOAD_DOUBLE = 3 };

#define EXPORT __attribute__((visibility("default")))
EXPORT int InitializeInjectionNvtx2(const void *(*find)(uint32_t));
EXPORT int InitializeInjectionNvtxExtension(extension *which);

static uint64_t ranges;
static const char *counters[64];
static uint64_t counter_count;

static const char *path; /* NULL: nothing is written down */

__attribute__((constructor)) static void find_path(void)
{
	path = getenv("LISTENER_LOG");
}

static void note(const char *format, ...)
{
	if (path == NULL)
		return;
	static __thread char line[MOST];
	int length = sprintf(line, "%ld\t", (long)syscall(SYS_gettid));
	va_list args;
	va_start(args, format);
	length += vsnprintf(line + length, sizeof line - 64, format, args);
	va_end(args);
	line[length++] = '\n';
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (write(fd, line, (size_t)length) != length)
		_exit(99);
	close(fd);
}

/* Domains and strings are their own names; the default domain has none. */
static const char *name_of(const char *domain)
{
	return domain ? domain : "";
}

static void on_mark(const char *domain, const attributes *what)
{
	if (what->payload_type == PAYLOAD_DOUBLE)
		note("mark\t%s\t%s\t%.17g", name_of(domain), what->message, what->payload.number);
	else
		note("mark\t%s\t%s", name_of(domain), what->message);
}

static uint64_t on_start(const char *domain, const attributes *what)
{
	uint64_t range = __atomic_add_fetch(&ranges, 1, __ATOMIC_RELAXED);
	note("start\t%s\t%s\t%llu", name_of(domain), what->message, (unsigned long long)range);
	return range;
}

static void on_end(const char *domain, uint64_t range)
{
	note("end\t%s\t%llu", name_of(domain), (unsigned long long)range);
}

static int on_push(const char *domain, const attributes *what)
{
	note("push\t%s\t%s\t%u", name_of(domain), what->message, what->category);
	return 0;
}

static int on_pop(const char *domain)
{
	note("pop\t%s", name_of(domain));
	return 0;
}

static void on_category(const char *domain, uint32_t category, const char *name)
{
	note("category\t%s\t%u\t%s", name_of(domain), category, name);
}

static const char *on_string(const char *domain, const char *text)
{
	(void)domain;
	return strdup(text);
}

static const char *on_domain(const char *name)
{
	note("domain\t%s", name);
	return strdup(name);
}

static uint64_t on_counter(const char *domain, const counter *what)
{
	note("counter\t%s\t%s", name_of(domain), what->name);
	counters[++counter_count] = strdup(what->name);
	return counter_count;
}

static void on_sample(const char *domain, uint64_t which, double value)
{
	note("sample\t%s\t%s\t%.17g", name_of(domain), counters[which], value);
}

int InitializeInjectionNvtxExtension(extension *which)
{
	if (which->module == COUNTERS) {
		which->segments[0].functions[REGISTER] = (intptr_t)on_counter;
		which->segments[0].functions[SAMPLE_DOUBLE] = (intptr_t)on_sample;
	}
	return 1;
}

int InitializeInjectionNvtx2(const void *(*find)(uint32_t))
{
	const tables *all = find(CALLBACKS);
	void ***table;
	unsigned count;
	if (!all || !all->find(DOMAINS, &table, &count) || count <= DOMAIN)
		return 0;
	*table[MARK] = (void *)on_mark;
	*table[START] = (void *)on_start;
	*table[END] = (void *)on_end;
	*table[PUSH] = (void *)on_push;
	*table[POP] = (void *)on_pop;
	*table[CATEGORY] = (void *)on_category;
	*table[STRING] = (void *)on_string;
	*table[DOMAIN] = (void *)on_domain;
	return 1;
}
