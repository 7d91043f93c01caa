/* An ITT collector that writes down every call it gets: one line each, with the thread.
 *
 * ITT's static part, which is in the program, loads the library that INTEL_LIBITTNOTIFY64 names
 * and calls its __itt_api_init, which puts its functions into the program's table. Unusual bytes
 * of names are written as \xNN. The file is LISTENER_LOG, if that is set. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST 4096

typedef struct domain {
	volatile int flags;
	const char *name;
	void *wide;
	int extra1;
	void *extra2;
	struct domain *next;
} domain;

typedef struct handle {
	const char *text;
	void *wide;
	int extra1;
	void *extra2;
	struct handle *next;
} handle;

typedef struct id {
	unsigned long long d1, d2, d3;
} id;

/* A function of ITT: its name, and where the program keeps the pointer to it. */
typedef struct entry {
	const char *name;
	void **pointer;
	void *at_first, *if_absent;
	int group;
} entry;

/* What the program's static part knows, up to its table. */
typedef struct program {
	unsigned char magic[8];
	unsigned long version[3];
	volatile long initialized, mutex_initialized, atomic_counter;
	pthread_mutex_t mutex;
	void *lib, *error_handler;
	const char **paths;
	entry *table;
} program;

typedef struct counter {
	char *domain, *name;
	int type;
} counter;

enum { WHOLE = 1 }; /* the type of a counter that was made without one */

static const char *events[MOST];
static int event_count;

/* Quote a text, in four buffers that take turns: a line has at most that many names. */
static const char *quote(const char *text)
{
	static __thread char buffers[4][65536];
	static __thread int turn;
	char *to = buffers[turn = (turn + 1) % 4], *begin = to;
	for (; *text && to - begin < 65000; text++) {
		if ((unsigned char)*text < 32)
			to += sprintf(to, "\\x%02x", (unsigned char)*text);
		else
			*to++ = *text;
	}
	*to = 0;
	return begin;
}

static const char *path; /* NULL: nothing is written down */

__attribute__((constructor)) static void find_path(void)
{
	path = getenv("LISTENER_LOG");
}

static void note(const char *format, ...)
{
	if (path == NULL)
		return;
	static __thread char line[262144];
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

EXPORT void __itt_api_init(program *whose, int groups);
EXPORT domain *__itt_domain_create(const char *name);
EXPORT handle *__itt_string_handle_create(const char *text);
EXPORT void __itt_task_begin(const domain *d, id task, id parent, handle *name);
EXPORT void __itt_task_end(const domain *d);
EXPORT void __itt_task_begin_overlapped(const domain *d, id task, id parent, handle *name);
EXPORT void __itt_task_end_overlapped(const domain *d, id task);
EXPORT void __itt_frame_begin_v3(const domain *d, id *frame);
EXPORT void __itt_frame_end_v3(const domain *d, id *frame);
EXPORT int __itt_event_create(const char *name, int length);
EXPORT int __itt_event_start(int event);
EXPORT int __itt_event_end(int event);
EXPORT void __itt_marker(const domain *d, id one, handle *name, int scope);
EXPORT void *__itt_counter_create(const char *name, const char *domain_name);
EXPORT void *__itt_counter_create_typed(const char *name, const char *domain_name, int type);
EXPORT void __itt_counter_set_value(void *one, void *value);
EXPORT void __itt_pause(void);
EXPORT void __itt_resume(void);

void __itt_api_init(program *whose, int groups)
{
	(void)groups;
	Dl_info self;
	dladdr((void *)__itt_api_init, &self);
	void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	for (entry *one = whose->table; one->name; one++) {
		void *ours = dlsym(library, one->name);
		*one->pointer = ours ? ours : one->if_absent;
	}
}

domain *__itt_domain_create(const char *name)
{
	static domain *first;
	for (domain *one = first; one; one = one->next)
		if (!strcmp(one->name, name))
			return one;
	domain *one = calloc(1, sizeof *one);
	*one = (domain){.flags = strcmp(name, "disabled") != 0, .name = strdup(name), .next = first};
	note("domain_create\t%s", quote(name));
	return first = one;
}

handle *__itt_string_handle_create(const char *text)
{
	handle *one = calloc(1, sizeof *one);
	one->text = strdup(text);
	return one;
}

void __itt_task_begin(const domain *d, id task, id parent, handle *name)
{
	(void)task, (void)parent;
	note("task_begin\t%s\t%s", quote(d->name), quote(name->text));
}

void __itt_task_end(const domain *d)
{
	note("task_end\t%s", quote(d->name));
}

void __itt_task_begin_overlapped(const domain *d, id task, id parent, handle *name)
{
	(void)parent;
	note("task_begin_overlapped\t%s\t%s\t%llx", quote(d->name), quote(name->text), task.d1);
}

void __itt_task_end_overlapped(const domain *d, id task)
{
	note("task_end_overlapped\t%s\t%llx", quote(d->name), task.d1);
}

void __itt_frame_begin_v3(const domain *d, id *frame)
{
	note("frame_begin_v3\t%s\t%llx", quote(d->name), frame->d1);
}

void __itt_frame_end_v3(const domain *d, id *frame)
{
	note("frame_end_v3\t%s\t%llx", quote(d->name), frame->d1);
}

int __itt_event_create(const char *name, int length)
{
	events[event_count] = strndup(name, (size_t)length);
	return event_count++;
}

int __itt_event_start(int event)
{
	note("event_start\t%s", quote(events[event]));
	return 0;
}

int __itt_event_end(int event)
{
	note("event_end\t%s", quote(events[event]));
	return 0;
}

void __itt_marker(const domain *d, id one, handle *name, int scope)
{
	note("marker\t%s\t%s\t%d\t%llu", quote(d->name), quote(name->text), scope, one.d1 | one.d2 | one.d3);
}

void *__itt_counter_create_typed(const char *name, const char *domain_name, int type)
{
	counter *one = calloc(1, sizeof *one);
	*one = (counter){strdup(domain_name), strdup(name), type};
	note("counter_create_typed\t%s\t%s\t%d", quote(domain_name), quote(name), type);
	return one;
}

void *__itt_counter_create(const char *name, const char *domain_name)
{
	return __itt_counter_create_typed(name, domain_name, WHOLE);
}

void __itt_counter_set_value(void *which, void *value)
{
	const counter *one = which;
	double number;
	unsigned long long whole;
	memcpy(&number, value, sizeof number);
	memcpy(&whole, value, sizeof whole);
	if (one->type == WHOLE)
		note("counter_set_value\t%s\t%llu", quote(one->name), whole);
	else
		note("counter_set_value\t%s\t%.17g", quote(one->name), number);
}

void __itt_pause(void)
{
	note("pause");
}

void __itt_resume(void)
{
	note("resume");
}
