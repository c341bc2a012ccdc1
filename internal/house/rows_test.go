package house

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"golang.org/x/mod/modfile"
)

// TestRows checks that tables are complete: packages in docs/libraries.md, notebooks in the README, examples in their
// README, dependencies in CONTRIBUTING.md.
func TestRows(t *testing.T) {
	libraries := read(t, "docs/libraries.md")
	for name := range strings.Lines(output(t, "go", "list", "./...")) {
		name = strings.TrimPrefix(strings.TrimSpace(name), module)
		top, _, _ := strings.Cut(name, "/")
		if top == "internal" || top == "examples" || top == "tests" || strings.Contains(name, "/internal") ||
			strings.Contains(name, "_probe") {
			continue
		}
		if !strings.Contains(libraries, "[`"+name+"`]") && !strings.Contains(libraries, "["+name+"](../"+name+")") {
			t.Errorf("docs/libraries.md has no row for %s", name)
		}
	}
	readme := read(t, "README.md")
	for _, notebook := range notebooks(t) {
		if !strings.Contains(readme, "["+notebook+"](notebooks/"+notebook+".ipynb)") {
			t.Errorf("README.md has no row for notebook %s", notebook)
		}
	}
	for _, example := range tracked(t, "examples/*/main.go") {
		if name := path.Base(path.Dir(example)); !strings.Contains(read(t, "examples/README.md"),
			"["+name+"]("+name+"/main.go)") {
			t.Errorf("examples/README.md has no row for %s", name)
		}
	}
	file := must.Get(modfile.Parse("go.mod", []byte(read(t, "go.mod")), nil))(t)
	_, table, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "## Why each dependency is there")
	for _, r := range file.Require {
		name := strings.TrimPrefix(r.Mod.Path, "golang.org/")
		if !strings.HasPrefix(name, "x/") {
			name = path.Base(regexp.MustCompile(`/v\d+$`).ReplaceAllString(name, ""))
		}
		if !r.Indirect && !regexp.MustCompile(`(^|[ |/])`+regexp.QuoteMeta(name)+`[ ,|(]`).MatchString(table) {
			t.Errorf("CONTRIBUTING.md does not say why %s is there", r.Mod.Path)
		}
	}
}
