package notebook

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
)

func TestParam(t *testing.T) {
	text := must.Get(EncodeParams(map[string]string{
		"devices": "16", "rate": "1e-3", "name": "mesh", "fast": "true", "limit": "1m30s", "empty": "", "huge": "1e999",
	}))(t)
	t.Setenv(EnvParams, text)
	lookup(t, "devices", 8, 16, "")
	lookup(t, "rate", 0.5, 1e-3, "")
	lookup(t, "devices", 0.5, 16.0, "")
	lookup(t, "name", "none", "mesh", "")
	lookup(t, "empty", "none", "", "")
	lookup(t, "fast", false, true, "")
	lookup(t, "limit", time.Second, 90*time.Second, "")
	lookup(t, "absent", 3, 3, "")

	lookup(t, "name", 8, 8, `notebook: parameter "name" is set to "mesh", which is not a whole number (int) such as 8`)
	lookup(t, "rate", 8, 8, `notebook: parameter "rate" is set to "1e-3", which is not a whole number (int) such as 8`)
	lookup(t, "name", 0.5, 0.5,
		`notebook: parameter "name" is set to "mesh", which is not a number (float64) such as 0.5`)
	lookup(t, "huge", 0.5, 0.5,
		`notebook: parameter "huge" is set to "1e999", which is not a number (float64) such as 0.5: it is out of range`)
	lookup(t, "name", true, true, `notebook: parameter "name" is set to "mesh", which is not true or false (bool)`)
	lookup(t, "devices", time.Second, time.Second,
		`notebook: parameter "devices" is set to "16", which is not a duration (time.Duration) such as 1m30s`)

	t.Setenv(EnvParams, "")
	lookup(t, "devices", 8, 8, "")
	for _, bad := range []string{"devices=16", `{"devices":16}`, `["devices"]`, "{"} {
		t.Setenv(EnvParams, bad)
		must.Refuse(t, bad, lookupParam("devices", new(int)), EnvParams)
	}
}

func lookup[T paramValue](t *testing.T, name string, def, want T, wantErr string) {
	t.Helper()
	got := def
	err := lookupParam(name, &got)
	if err == nil && got != want {
		t.Errorf("%s: got %v, want %v", name, got, want)
	}
	if message := fmt.Sprint(err); message != cmp.Or(wantErr, "<nil>") {
		t.Errorf("%s: got  %s\nwant %s", name, message, wantErr)
	}
}

// TestParamEndsProcess runs itself as the process that ends.
func TestParamEndsProcess(t *testing.T) {
	if os.Getenv("READ_PARAM") != "" {
		fmt.Println("devices:", Param("devices", 8))
		os.Exit(0)
	}
	for _, test := range []struct {
		params, out, noise string
		status             int
	}{
		{"", "devices: 8\n", "", 0},
		{`{"devices":"16"}`, "devices: 16\n", "", 0},
		{`{"devices":"many"}`, "", `notebook: parameter "devices" is set to "many", ` +
			"which is not a whole number (int) such as 8\n", 1},
	} {
		var noise strings.Builder
		command := exec.Command(os.Args[0], "-test.run=^TestParamEndsProcess$")
		command.Env = append(os.Environ(), "READ_PARAM=1", "GONB_PIPE=", EnvParams+"="+test.params)
		command.Stderr = &noise
		out, _ := command.Output()
		if status := command.ProcessState.ExitCode(); string(out) != test.out || noise.String() != test.noise ||
			status != test.status {
			t.Errorf("%s: %q, %q, status %d", test.params, out, noise.String(), status)
		}
	}
}

func TestParamNames(t *testing.T) {
	for _, test := range []struct {
		cells []string
		want  string
	}{
		{nil, ""},
		{[]string{`notebook.Param("b", 1); notebook.Param("a", 2)`, `notebook.Param("b", 3)`}, "a b"},
		{[]string{"%% --flag\nx := notebook.Param(\n\t\"devices\", // why\n\t8)"}, "devices"},
		{[]string{`notebook.Param[time.Duration]("limit", 1)`}, "limit"},
		{[]string{"// notebook.Param(\"a\", 1)\n/* notebook.Param(\"b\", 1)\n */ notebook.Param(\"c\", 1)"}, "c"},
		{[]string{`other.Param("a", 1); notebook.Keep("b", 1); notebook.Param(name, 1)`}, ""},
	} {
		if got := ParamNames(test.cells...); !slices.Equal(got, strings.Fields(test.want)) {
			t.Errorf("%q: got %q, want %q", test.cells, got, test.want)
		}
	}
}

func ExampleParam() {
	fmt.Println("devices:", Param("devices", 8))
	// Output: devices: 8
}
