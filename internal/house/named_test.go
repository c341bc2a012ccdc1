package house

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/modfile"
)

// tests checks that the tests or benchmarks of a go test command exist.
func (tr *trial) tests(c command) {
	folder := tr.packages(c)
	for _, found := range regexp.MustCompile(`-(run|bench) '?([\w^$]+)'?`).FindAllStringSubmatch(c.text, -1) {
		kind := map[string]string{"run": "Test", "bench": "Benchmark"}[found[1]]
		name := regexp.MustCompile(`(?m)^func (` + kind + `\w*)\(`)
		wanted := regexp.MustCompile(strings.TrimPrefix(found[2], "'"))
		if found[2] == "^$" {
			continue // only benchmarks
		}
		ok := false
		for _, file := range tracked(tr.t, ":(glob)"+folder+"/**/*_test.go") {
			for _, test := range name.FindAllStringSubmatch(read(tr.t, file), -1) {
				ok = ok || wanted.MatchString(test[1])
			}
		}
		if !ok {
			tr.t.Errorf("%s: %s: no such test below %s", c.at, c.text, folder)
		}
	}
}

// packages checks that the packages exist, and returns the folder of the last one.
func (tr *trial) packages(c command) (folder string) {
	for _, found := range regexp.MustCompile(` \./(\S*)`).FindAllStringSubmatch(c.text, -1) {
		folder = strings.TrimSuffix(strings.TrimSuffix(found[1], "..."), "/")
		if !exists(folder) {
			tr.t.Errorf("%s: %s: %s does not exist", c.at, c.text, folder)
		}
	}
	if folder == "" {
		folder = "."
	}
	return folder
}

// module compares the module with go.mod, and its version with the newest one of the changelog.
func (tr *trial) module(c command) {
	path, version, _ := strings.Cut(strings.TrimPrefix(c.text, "go get "), "@")
	if want := modfile.ModulePath([]byte(read(tr.t, "go.mod"))); path != want {
		tr.t.Errorf("%s: %s: the module is %s", c.at, c.text, want)
	}
	newest := regexp.MustCompile(`(?m)^## \[(\d[^\]]*)\]`).FindStringSubmatch(read(tr.t, "CHANGELOG.md"))
	if version != "" && version != "latest" && (newest == nil || version != "v"+newest[1]) {
		tr.t.Errorf("%s: %s: the newest version of CHANGELOG.md is %q", c.at, c.text, newest)
	}
}

// clone checks that the command clones the module's repository and enters its folder.
func (tr *trial) clone(c command) {
	path := modfile.ModulePath([]byte(read(tr.t, "go.mod")))
	if want := "git clone https://" + path + " && cd " + filepath.Base(path); c.text != want {
		tr.t.Errorf("%s: %s: want %s", c.at, c.text, want)
	}
}

// files checks that files exist, and that the Dockerfile has the build arguments, targets and ports.
func (tr *trial) files(c command) {
	file := regexp.MustCompile(`(?:^| )((?:docker|binder)/\S+|compose\.yaml)`)
	for _, found := range file.FindAllStringSubmatch(c.text, -1) {
		if !exists(found[1]) {
			tr.t.Errorf("%s: %s: %s does not exist", c.at, c.text, found[1])
		}
	}
	for _, look := range []struct{ named, is string }{
		{`--build-arg (\w+)=`, `(?m)^ARG %s\b`}, {`--target (\S+)`, `(?m)^FROM .* AS %s$`},
		{`-p (?:\S+:)?(\d+)(?: |$)`, `(?m)^EXPOSE %s$`},
	} {
		for _, found := range regexp.MustCompile(look.named).FindAllStringSubmatch(c.text, -1) {
			if !regexp.MustCompile(fmt.Sprintf(look.is, found[1])).MatchString(read(tr.t, "docker/Dockerfile")) {
				tr.t.Errorf("%s: %s: docker/Dockerfile has no %s", c.at, c.text, found[1])
			}
		}
	}
	if _, inside, ok := strings.Cut(c.text, " shardbook shardbook "); ok { // the image and a command in it
		tr.flags(command{at: c.at, text: "shardbook " + inside})
	}
	if _, after, ok := strings.Cut(c.text, "train.sbatch"); ok {
		tr.have(c, "shardbook train", after)
	}
}

// debian checks that tests install the same packages.
func (tr *trial) debian(c command) {
	for _, name := range strings.Fields(c.text)[2:] {
		if !strings.Contains(read(tr.t, "internal/systest/systest.go"), `"`+name+`"`) {
			tr.t.Errorf("%s: %s: no test installs %s", c.at, c.text, name)
		}
	}
}

// packed checks that the script that bench pack packs has the parts.
func (tr *trial) packed(c command) {
	for _, part := range strings.Fields(c.text)[3:] {
		if !strings.Contains(read(tr.t, "bench/pack.sh"), "\n\t"+part+") ") {
			tr.t.Errorf("%s: %s: the script has no part %s", c.at, c.text, part)
		}
	}
}

func (tr *trial) setting(c command) {
	name, _, _ := strings.Cut(strings.TrimPrefix(c.text, "export "), "=")
	tr.variable(name)
}

func (tr *trial) badge(c command) {
	found := onBinder.FindStringSubmatch(c.text)
	if found == nil || !exists(found[1]) {
		tr.t.Errorf("%s: %s opens no notebook", c.at, c.text)
	}
}

// variable checks that the code, or a script, reads an environment variable.
func (tr *trial) variable(name string) {
	for _, file := range tracked(tr.t, "*.go", "docker/*.sbatch", "bench/*.sh") {
		if text := read(tr.t, file); strings.Contains(text, `"`+name+`"`) || strings.Contains(text, "${"+name+":") {
			return
		}
	}
	tr.t.Errorf("nothing reads %s", name)
}
