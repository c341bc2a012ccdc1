package notebook_test

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/shardbook/shardbook/lib/notebook"
)

func TestLookupParam(t *testing.T) {
	text, err := notebook.EncodeParams(map[string]string{
		"devices": "16", "rate": "1e-3", "name": "mesh", "fast": "true", "limit": "1m30s", "empty": "", "huge": "1e999",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(notebook.EnvParams, text)
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
	lookup(t, "name", 0.5, 0.5, `notebook: parameter "name" is set to "mesh", which is not a number (float64) such as 0.5`)
	lookup(t, "huge", 0.5, 0.5, `notebook: parameter "huge" is set to "1e999", which is not a number (float64) such as 0.5: it is out of range`)
	lookup(t, "name", true, true, `notebook: parameter "name" is set to "mesh", which is not true or false (bool)`)
	lookup(t, "devices", time.Second, time.Second,
		`notebook: parameter "devices" is set to "16", which is not a duration (time.Duration) such as 1m30s`)

	t.Setenv(notebook.EnvParams, "")
	lookup(t, "devices", 8, 8, "")
	for _, bad := range []string{"devices=16", `{"devices":16}`, `["devices"]`, "{"} {
		t.Setenv(notebook.EnvParams, bad)
		if got, err := notebook.LookupParam("devices", 8); got != 8 || err == nil || !strings.Contains(err.Error(), notebook.EnvParams) {
			t.Errorf("%s: got %d, %v", bad, got, err)
		}
	}
}

func lookup[T notebook.ParamValue](t *testing.T, name string, def, want T, wantErr string) {
	t.Helper()
	got, err := notebook.LookupParam(name, def)
	if got != want {
		t.Errorf("%s: got %v, want %v", name, got, want)
	}
	if message := fmt.Sprint(err); wantErr != "" && message != wantErr {
		t.Errorf("%s: got  %s\nwant %s", name, message, wantErr)
	}
	if wantErr == "" && err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// Any text comes back as it was set, or is refused.
func TestEncodeParamsRandom(t *testing.T) {
	property := func(name, value string) bool {
		text, err := notebook.EncodeParams(map[string]string{name: value})
		if err != nil {
			return name == "" || strings.ToValidUTF8(name+value, "") != name+value
		}
		t.Setenv(notebook.EnvParams, text)
		got, err := notebook.LookupParam(name, "default")
		return err == nil && got == value
	}
	if err := quick.Check(property, &quick.Config{Rand: rand.New(rand.NewSource(1))}); err != nil {
		t.Error(err)
	}
	for _, bad := range []map[string]string{{"": "1"}, {"a": "\xff"}, {"\xff": "a"}} {
		if text, err := notebook.EncodeParams(bad); err == nil {
			t.Errorf("%q: got %s", bad, text)
		}
	}
	if text, err := notebook.EncodeParams(nil); text != "{}" || err != nil {
		t.Errorf("nil: got %s, %v", text, err)
	}
}

// TestParamEndsProcess runs itself as the process that ends.
func TestParamEndsProcess(t *testing.T) {
	if os.Getenv("READ_PARAM") != "" {
		fmt.Println("devices:", notebook.Param("devices", 8))
		os.Exit(0)
	}
	run := func(params string) (stdout, stderr string, status int) {
		command := exec.Command(os.Args[0], "-test.run=^TestParamEndsProcess$")
		command.Env = append(os.Environ(), "READ_PARAM=1", "GONB_PIPE=", notebook.EnvParams+"="+params)
		out, err := command.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return string(out), string(exit.Stderr), exit.ExitCode()
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(out), "", 0
	}
	if out, _, status := run(""); out != "devices: 8\n" || status != 0 {
		t.Errorf("default: %q, status %d", out, status)
	}
	if out, _, status := run(`{"devices":"16"}`); out != "devices: 16\n" || status != 0 {
		t.Errorf("set: %q, status %d", out, status)
	}
	out, stderr, status := run(`{"devices":"many"}`)
	want := `notebook: parameter "devices" is set to "many", which is not a whole number (int) such as 8` + "\n"
	if out != "" || stderr != want || status != 1 {
		t.Errorf("bad value: %q, %q, status %d", out, stderr, status)
	}
}

func TestParamNames(t *testing.T) {
	const use = "import \"github.com/shardbook/shardbook/lib/notebook\"\n"
	tests := []struct {
		name  string
		cells []string
		want  string
	}{
		{"none", nil, ""},
		{"plain", []string{use, `x := notebook.Param("devices", 8)`}, "devices"},
		{"sorted, once", []string{`notebook.Param("b", 1); notebook.Param("a", 2); notebook.Param("b", 3)`}, "a b"},
		{"after %%", []string{"%% --flag\nx := notebook.Param(\"devices\", 8)"}, "devices"},
		{"after %main", []string{"%main\nfmt.Println(notebook.Param(\"devices\", 8))"}, "devices"},
		{"type argument", []string{`notebook.Param[time.Duration]("limit", 1); notebook.LookupParam[float64]("rate", 1)`}, "limit rate"},
		{"raw string", []string{"notebook.Param(`a`, 1)"}, "a"},
		{"escapes", []string{`notebook.Param("\x61", 1)`}, "a"},
		{"spread over lines", []string{"notebook.\n\tParam(\n\t\t\"a\", // why\n\t\t1,\n)"}, "a"},
		{"comments", []string{"// notebook.Param(\"a\", 1)\n/* notebook.Param(\"b\", 1) */"}, ""},
		{"in a string", []string{`s := "notebook.Param(\"a\", 1)"`}, ""},
		{"command lines", []string{"!echo 'notebook.Param(\"a\", 1)' \\\n notebook.Param(\"b\", 1)\nnotebook.Param(\"c\", 1)"}, "c"},
		{"command with an apostrophe", []string{"!echo it's\nnotebook.Param(\"c\", 1)"}, "c"},
		{"another program's cell", []string{"%%writefile a.go\nnotebook.Param(\"a\", 1)", "%%bash\nnotebook.Param(\"b\", 1)"}, ""},
		{"alias of another cell", []string{"import nb \"github.com/shardbook/shardbook/lib/notebook\"", `nb.Param("a", 1)`}, "a"},
		{"dot import", []string{"import . \"github.com/shardbook/shardbook/lib/notebook\"", `Param("a", 1); x.Param("b", 1)`}, "a"},
		{"another package", []string{`other.Param("a", 1); Param("b", 1); x.notebook.Param("c", 1)`}, ""},
		{"another function", []string{`notebook.ParamNames("a", "b"); notebook.Keep("c", 1)`}, ""},
		{"not a literal", []string{`notebook.Param(name, 1); notebook.Param("a"+b, 1); notebook.Param("c")`}, ""},
		{"incomplete", []string{`notebook.Param("a"`, `notebook.Param(`, `notebook.`, `notebook.Param[`, `notebook.Param("a", 1`}, "a"},
		{"broken cell", []string{"x := \"open\nnotebook.Param(\"a\", 1)", "/* open", `notebook.Param("b", 1)`}, "a b"},
		{"Windows lines", []string{"!ls \\\r\n-l\r\nnotebook.Param(\"a\", 1)\r\n"}, "a"},
	}
	for _, test := range tests {
		if got := notebook.ParamNames(test.cells...); !slices.Equal(got, strings.Fields(test.want)) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func FuzzParamNames(f *testing.F) {
	f.Add("%%\nnotebook.Param(\"a\", 1)", `import nb "github.com/shardbook/shardbook/lib/notebook"`)
	f.Add("notebook.Param[", "\x00\\")
	f.Fuzz(func(t *testing.T, a, b string) {
		if names := notebook.ParamNames(a, b); !slices.IsSorted(names) {
			t.Errorf("%q: %q is not sorted", []string{a, b}, names)
		}
	})
}

func ExampleParam() {
	fmt.Println("devices:", notebook.Param("devices", 8))
	// Output: devices: 8
}

func ExampleLookupParam() {
	defer os.Setenv(notebook.EnvParams, os.Getenv(notebook.EnvParams))
	text, _ := notebook.EncodeParams(map[string]string{"devices": "many", "span": "1m30s"})
	os.Setenv(notebook.EnvParams, text)

	fmt.Println(notebook.LookupParam("span", time.Second))
	fmt.Println(notebook.LookupParam("devices", 8))
	// Output:
	// 1m30s <nil>
	// 8 notebook: parameter "devices" is set to "many", which is not a whole number (int) such as 8
}

func ExampleParamNames() {
	fmt.Println(notebook.ParamNames(
		`devices := notebook.Param("devices", 8)`,
		"%%\n"+`rate := notebook.Param("rate", 0.1) // notebook.Param("old", 1)`,
	))
	// Output: [devices rate]
}
