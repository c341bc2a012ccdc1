//go:build !resident

// Collectives between the devices of a process, called from XLA's programs. This file has how devices meet and go on;
// move.h has what is done with their arrays.
//
// No thread waits in a call: a device that comes early leaves its arrays and a future, and XLA goes on with whatever does
// not need the results. The device that comes last does the work for all. So devices cannot starve each other, however few
// threads there are and whoever holds them.
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "../../../../internal/half/half.h"
#include "../../foreign/foreign.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "move.h"

// meeting is a call that not all devices of a group have come to yet.
typedef struct meeting {
	int64_t run, call, group; // XLA numbers runs of programs; a call is numbered in its program
	const char *name;
	const foreign_api *api;
	int64_t ranks, arrays, arrived;
	struct timespec until;
	struct meeting *next;
	foreign_future **futures; // by rank
	void **in, **out;         // by rank and array
} meeting;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static meeting *first;
static pthread_cond_t met = PTHREAD_COND_INITIALIZER;
static const struct timespec never = {INT64_MAX, 0};
static struct timespec asleep_until;

// Devices go on in threads of their own: SetAvailable runs the rest of a device's program, up to its next asynchronous
// operation. A thread that is still busy with another device's program may be waiting in XLA's own collectives for this
// one, so nothing is queued for threads that are not idle.
typedef struct ready {
	const foreign_api *api;
	foreign_future *future;
	foreign_error *error; // or NULL
	struct ready *next;
} ready;

static pthread_mutex_t ready_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ready_some = PTHREAD_COND_INITIALIZER;
static ready *ready_first;
static int64_t ready_count, idle;

static void complete(const foreign_api *api, foreign_future *future, foreign_error *error) {
	foreign_future_args done = {sizeof done, NULL, future};
	foreign_failure_args failed = {sizeof failed, NULL, future, error};
	foreign_error *wrong = error ? api->failure(&failed) : api->available(&done);
	foreign_destroy_args gone = {sizeof gone, NULL, wrong};
	if (wrong) api->destroy(&gone);
}

static void *go_on(void *unused) {
	(void)unused;
	pthread_mutex_lock(&ready_lock);
	for (idle--;; ) {
		while (!ready_first) {
			idle++;
			pthread_cond_wait(&ready_some, &ready_lock);
			idle--;
		}
		ready *r = ready_first;
		ready_first = r->next;
		ready_count--;
		int more = ready_first != NULL;
		pthread_mutex_unlock(&ready_lock);
		if (more) pthread_cond_signal(&ready_some);
		complete(r->api, r->future, r->error);
		free(r);
		pthread_mutex_lock(&ready_lock);
	}
	return NULL;
}

static int start(void *(*thread)(void *)) {
	pthread_t id;
	int wrong = pthread_create(&id, NULL, thread, NULL);
	if (!wrong) pthread_detach(id);
	return !wrong;
}

// let_go queues a device's program to go on, with an error or NULL. Afterwards one thread must be woken: it wakes the next.
static void let_go(const foreign_api *api, foreign_future *future, foreign_error *error) {
	ready *r = malloc(sizeof *r);
	pthread_mutex_lock(&ready_lock);
	int some = r != NULL;
	if (some && ready_count >= idle) { // the new thread counts as idle until it looks for something to do
		idle++;
		if (!(some = start(go_on))) idle--;
	}
	if (some) {
		*r = (ready){api, future, error, NULL};
		ready **end = &ready_first;
		while (*end) end = &(*end)->next;
		*end = r;
		ready_count++;
	}
	pthread_mutex_unlock(&ready_lock);
	if (some) return;
	free(r);
	complete(api, future, error); // without memory or a thread: on this one
}

static foreign_error *fail(const foreign_api *api, const char *message) {
	foreign_error_args args = {sizeof args, NULL, message, 13 /* internal */};
	return api->error(&args);
}

// end has all devices that have come go on, and frees the meeting.
static void end(meeting *m, const char *failure) {
	for (int64_t r = 0; r < m->ranks; r++)
		if (m->futures[r]) let_go(m->api, m->futures[r], failure ? fail(m->api, failure) : NULL);
	pthread_cond_signal(&ready_some);
	free(m);
}

static _Atomic int64_t patience = 120000; // milliseconds

void shardbook_meet_patience(int64_t milliseconds) { atomic_store(&patience, milliseconds); }

static int before(struct timespec a, struct timespec b) {
	return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec < b.tv_nsec);
}

// watch fails meetings that take too long. It sleeps until the first would, even if that one is over before, so that
// hardly any meeting has to wake it.
static void *watch(void *unused) {
	(void)unused;
	pthread_mutex_lock(&lock);
	for (;;) {
		if (!first) {
			asleep_until = never;
			pthread_cond_wait(&met, &lock);
			continue;
		}
		struct timespec now;
		clock_gettime(CLOCK_REALTIME, &now);
		if (before(now, first->until)) {
			asleep_until = first->until;
			pthread_cond_timedwait(&met, &lock, &asleep_until);
			continue;
		}
		meeting *late = first;
		first = late->next;
		pthread_mutex_unlock(&lock);
		char message[300];
		snprintf(message, sizeof message, "%s: %lld of %lld devices came within %g s: the program of another has failed, "
			"or takes another branch or number of iterations", late->name, (long long)late->arrived, (long long)late->ranks,
			atomic_load(&patience) / 1e3);
		end(late, message);
		pthread_mutex_lock(&lock);
	}
	return NULL;
}

// begin makes a meeting at the end of the list, so that the oldest is first.
static int begin(foreign_frame *f, meeting **at, const char *name, int64_t run, int64_t call, int64_t group, int64_t ranks,
		int64_t arrays) {
	static int watched;
	if (!watched && !(watched = start(watch))) return 0;
	meeting *m = calloc(1, sizeof *m + ranks * (1 + 2 * arrays) * sizeof(void *));
	if (!m) return 0;
	void **room = (void **)(m + 1);
	int64_t limit = atomic_load(&patience);
	*m = (meeting){.run = run, .call = call, .group = group, .name = name, .api = f->api, .ranks = ranks, .arrays = arrays,
		.futures = (foreign_future **)room, .in = room + ranks, .out = room + ranks + ranks * arrays};
	clock_gettime(CLOCK_REALTIME, &m->until);
	m->until.tv_sec += limit / 1000;
	m->until.tv_nsec += limit % 1000 * 1000000;
	if (m->until.tv_nsec >= 1000000000) m->until.tv_sec++, m->until.tv_nsec -= 1000000000;
	*at = m;
	if (before(m->until, asleep_until)) pthread_cond_signal(&met);
	return 1;
}

// arrive adds a device to the meeting of its group. It returns the meeting if the device is the last one; otherwise NULL,
// with a future in the frame or an error.
static meeting *arrive(foreign_frame *f, const char *name, const plan *p, int64_t run, int64_t group, int64_t rank,
		foreign_error **wrong) {
	int64_t arrays = f->in.size - 1;
	const char *problem = NULL;
	pthread_mutex_lock(&lock);
	meeting **at = &first;
	while (*at && ((*at)->run != run || (*at)->call != p->call || (*at)->group != group)) at = &(*at)->next;
	if (!*at && !begin(f, at, name, run, p->call, group, p->ranks, arrays)) problem = "out of memory or threads";
	meeting *m = *at;
	if (m && (m->arrays != arrays || m->ranks != p->ranks || m->in[rank * arrays])) {
		problem = "a device has come to the same collective twice: XLA has copied the operation; "
			"open the backend with xla.NoKernels()";
		m = NULL;
	}
	foreign_future_args later = {sizeof later, NULL, NULL};
	int last = m && m->arrived + 1 == m->ranks;
	if (m && !last && (*wrong = f->api->future(&later))) m = NULL;
	if (m) {
		m->arrived++;
		for (int64_t i = 0; i < arrays; i++) {
			m->in[rank * arrays + i] = foreign_in(f, i)->data;
			if (i < f->out.size) m->out[rank * arrays + i] = foreign_out(f, i)->data;
		}
		f->future = m->futures[rank] = later.future;
		if (last) *at = m->next;
	}
	pthread_mutex_unlock(&lock);
	if (problem) *wrong = foreign_fail(f, problem);
	return last ? m : NULL;
}

// run does one device's call. The operands are the arrays, counts if parts are uneven, and the plan.
static foreign_error *run(foreign_frame *f, const char *name, int uneven) {
	plan p;
	if (f->in.size < 2 + uneven || f->out.size != f->in.size - 1 - uneven || !read_plan(foreign_in(f, f->in.size - 1), &p))
		return foreign_fail(f, "a collective's call does not have the operands, results and plan that lib/xla writes");
	foreign_run_args which = {sizeof which, NULL, f->context, 0};
	foreign_device_args device = {sizeof device, NULL, f->context, 0};
	foreign_error *wrong = f->api->run(&which);
	if (wrong || (wrong = f->api->device(&device))) return wrong;
	int64_t place = 0, all = p.groups * p.ranks;
	while (place < all && p.first + p.devices[place] != device.device) place++;
	if (place == all) return foreign_fail(f, "a collective runs on a device that is in none of its groups");
	for (int64_t i = 0; i < f->out.size; i++)
		if (uneven ? !fits_uneven(&p, foreign_in(f, 0), foreign_in(f, 1), foreign_out(f, 0)) :
				!fits(&p, foreign_in(f, 0)->type, foreign_in(f, i), foreign_out(f, i)))
			return foreign_fail(f, "a collective's operands and results have types or sizes that do not fit");
	meeting *m = arrive(f, name, &p, which.run, place / p.ranks, place % p.ranks, &wrong);
	if (!m) return wrong;
	char problem[300] = "a collective's last device was out of memory";
	wrong = uneven ? move_uneven(f, &p, m->in, m->out, problem, sizeof problem) : move(f, &p, m->in, m->out);
	end(m, wrong ? problem : NULL);
	return wrong;
}

static foreign_error *all_reduce(foreign_frame *f) { return run(f, "all-reduce", 0); }
static foreign_error *all_gather(foreign_frame *f) { return run(f, "all-gather", 0); }
static foreign_error *reduce_scatter(foreign_frame *f) { return run(f, "reduce-scatter", 0); }
static foreign_error *all_to_all(foreign_frame *f) { return run(f, "all-to-all", 0); }
static foreign_error *permute(foreign_frame *f) { return run(f, "collective-permute", 0); }
static foreign_error *all_to_all_v(foreign_frame *f) { return run(f, "all-to-all-v", 1); }

// They have names of their own, so that profiles and the compiled program tell them apart.
void *shardbook_meet_all_reduce(foreign_frame *f) { return foreign_handle(f, all_reduce); }
void *shardbook_meet_all_gather(foreign_frame *f) { return foreign_handle(f, all_gather); }
void *shardbook_meet_reduce_scatter(foreign_frame *f) { return foreign_handle(f, reduce_scatter); }
void *shardbook_meet_all_to_all(foreign_frame *f) { return foreign_handle(f, all_to_all); }
void *shardbook_meet_permute(foreign_frame *f) { return foreign_handle(f, permute); }
void *shardbook_meet_all_to_all_v(foreign_frame *f) { return foreign_handle(f, all_to_all_v); }
