package plugin

import (
	"errors"
	"strings"
	"testing"
)

// profilerSource is a plugin with a profiler. It writes down what it is asked to do, which is also its data; at FAIL it
// fails, the first time. It has the caller bring memory for the data with ASK.
const profilerSource = `#include <stddef.h>
#include <string.h>
typedef struct { size_t size; void *priv, *error; const char *message; size_t message_size; } error_args;
typedef struct { size_t size; const char *options; size_t n; void *profiler; } create_args;
typedef struct { size_t size; void *profiler; char *data; size_t count; } args;
static char did[1000];
static void *step(char c) {
	static int failed;
	did[strlen(did)] = c;
	return c == FAIL && !failed++ ? "no such thing, really" : 0;
}
static void error_destroy(error_args *a) { step('E'); }
static void error_message(error_args *a) { a->message = a->error; a->message_size = 13; }
static void *create(create_args *a) { a->profiler = did; return a->n == 6 ? step('c') : "wrong options"; }
static void *start(args *a) { return step(a->profiler == did ? 's' : '?'); }
static void *stop(args *a) { return step(a->profiler == did ? 'p' : '?'); }
static void *destroy(args *a) { return step(a->profiler == did ? 'd' : '?'); }
static void *collect(args *a) {
	void *error = step('g');
	a->count = strlen(did);
	if (ASK && a->data) memcpy(a->data, did, a->count);
	if (!ASK && !a->data) a->data = did;
	if (ASK && !a->data) a->count++;
	return error;
}
static struct { size_t size; void *p[9]; } profiler = {
	80, { 0, error_destroy, error_message, 0, create, destroy, start, stop, collect } };
static struct { size_t size; int type; void *next, *profiler; } second = { SIZE, 1, 0, PROFILER };
static struct { size_t size; int type; void *next; } first = { 24, 5, &second };
static struct { size_t size; void *extension; size_t s; void *e; int major, minor; } api = {
	48, &first, 24, 0, 0, 115 };
void *GetPjrtApi(void) { return &api; }`

func profilerLibrary(t *testing.T, definitions ...string) Plugin {
	all := append(definitions, "PROFILER &profiler", "SIZE 32", "ASK 0", "FAIL 0")
	var source strings.Builder
	for _, d := range all {
		name, _, _ := strings.Cut(d, " ")
		source.WriteString("#ifndef " + name + "\n#define " + d + "\n#endif\n")
	}
	return library(t, source.String()+profilerSource)
}

func TestRecord(t *testing.T) {
	for _, test := range []struct{ define, want string }{{"ASK 0", "cspg"}, {"ASK 1", "cspgg"}} {
		p := profilerLibrary(t, test.define)
		for _, before := range []string{"", test.want + "d"} { // one after another
			ran := 0
			data, err := Record(p, func() error { ran++; return nil })
			if err != nil || string(data) != before+test.want || ran != 1 {
				t.Errorf("%s: %q, %v, ran %d times; want %q", test.define, data, err, ran, before+test.want)
			}
		}
	}
}

// Whatever goes wrong, what was started is stopped and destroyed, and the next recording works.
func TestRecordThatFails(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		define string
		f      error
		runs   bool
		want   string
		did    string
	}{
		{"FAIL 'c'", nil, false, "cannot record: no such thing", "cE"},
		{"FAIL 's'", nil, false, "no such thing", "csEd"},
		{"FAIL 'p'", nil, true, "no such thing", "cspEd"},
		{"FAIL 'g'", nil, true, "no such thing", "cspgEd"},
		{"FAIL 'd'", nil, true, "", "cspgdE"},
		{"FAIL 0", broken, true, "broken", "cspd"},
	} {
		p := profilerLibrary(t, test.define)
		ran := false
		_, err := Record(p, func() error { ran = true; return test.f })
		if err == nil != (test.want == "") || err != nil && !strings.Contains(err.Error(),
			test.want) || ran != test.runs {
			t.Errorf("%s, f says %v: error %v, ran: %v", test.define, test.f, err, ran)
		}
		if test.f != nil && err != test.f {
			t.Errorf("f's error came back as %v", err)
		}
		if data, err := Record(p, func() error { return nil }); err != nil || string(data) != test.did+"cspg" {
			t.Errorf("%s, the next recording: %q, %v, want %q", test.define, data, err, test.did+"cspg")
		}
	}
}

func TestRecordOneAtATime(t *testing.T) {
	p := profilerLibrary(t)
	data, err := Record(p, func() error {
		_, err := Record(p, func() error { t.Error("the inner one runs"); return nil })
		if !errors.Is(err, errRecording) {
			t.Errorf("one in another: %v", err)
		}
		return nil
	})
	if err != nil || string(data) != "cspg" {
		t.Errorf("the outer one: %q, %v", data, err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = Record(p, func() error { panic("oh") })
	}()
	if data, err := Record(p, func() error { return nil }); err != nil || string(data) != "cspgd"+"cspd"+"cspg" {
		t.Errorf("after a panic: %q, %v", data, err)
	}
}

func TestRecordWithoutProfiler(t *testing.T) {
	for name, p := range map[string]Plugin{
		"no extensions":     library(t, apiOf("0, 115")),
		"a short extension": profilerLibrary(t, "SIZE 24"),
		"no functions":      profilerLibrary(t, "PROFILER 0"),
		"an older profiler": profilerLibrary(t, "PROFILER (long[]){40, 0, 0, 0, 0}"),
	} {
		if _, err := Record(p, func() error { t.Error("it runs"); return nil }); !errors.Is(err, ErrNoProfiler) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
