package house

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	// link is a Markdown or HTML link or image with its target.
	link = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"`)

	// quotedFile is a path from the root in backticks.
	quotedFile = regexp.MustCompile(
		"`((?:bench|binder|cmd|docker|docs|examples|internal|kernel|lib|notebooks)/[\\w./-]+)`")

	// onBinder is the notebook that a link to Binder opens.
	onBinder = regexp.MustCompile(`labpath=([^)"&\s]+)`)

	heading = regexp.MustCompile(`(?m)^#+ +(.+?) *#*$`)
	inCode  = regexp.MustCompile("`[^`\n]*`")
)

// TestLinks checks that links into the repository, with their headings, and the files that documents name exist.
func TestLinks(t *testing.T) {
	found := 0
	for _, d := range documents(t) {
		_, rest := d.blocks()
		text := strings.Join(rest, "\n")
		for _, name := range quotedFile.FindAllStringSubmatch(text, -1) {
			if !exists(name[1]) && !elsewhere[name[1]] {
				t.Errorf("%s names %s, which does not exist", d.name, name[1])
			}
		}
		for _, notebook := range onBinder.FindAllStringSubmatch(text, -1) {
			if !exists(notebook[1]) {
				t.Errorf("%s opens %s on Binder, which does not exist", d.name, notebook[1])
			}
		}
		for _, match := range link.FindAllStringSubmatch(inCode.ReplaceAllString(text, "code"), -1) {
			target := match[1] + match[2]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "data:") {
				continue
			}
			found++
			if err := d.leads(t, target); err != nil {
				t.Errorf("%s links to %s: %v", d.name, target, err)
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d links found", found)
	}
}

// leads returns an error for a link of the document without a target.
func (d document) leads(t *testing.T, target string) error {
	file, anchor, _ := strings.Cut(target, "#")
	name := d.name
	if file != "" {
		name = path.Join(path.Dir(d.name), file)
		if strings.HasPrefix(name, "..") || !exists(name) {
			return fmt.Errorf("%s does not exist", name)
		}
	}
	if anchor == "" {
		return nil
	}
	if !anchors(documentOf(t, name))[anchor] {
		return fmt.Errorf("%s has no such heading", name)
	}
	return nil
}

func exists(name string) bool {
	_, err := os.Stat(filepath.Join(root, name))
	return err == nil
}

// anchors are the headings of a document as links of GitHub, and for notebooks also of JupyterLab.
func anchors(d document) map[string]bool {
	_, rest := d.blocks()
	all := map[string]bool{}
	for _, found := range heading.FindAllStringSubmatch(strings.Join(rest, "\n"), -1) {
		title := strings.ReplaceAll(found[1], "`", "")
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, title)
		for n := 1; all[slug]; n++ { // GitHub numbers equal headings
			if next := fmt.Sprintf("%s-%d", slug, n); !all[next] {
				slug = next
			}
		}
		all[slug] = true
		if path.Ext(d.name) == ".ipynb" {
			all[strings.ReplaceAll(title, " ", "-")] = true
		}
	}
	return all
}

var (
	// named is a document or a manifest in a comment, inUpstream a heading of docs/upstream.md.
	named      = regexp.MustCompile(`(?:[\w.-]+/)*[\w-][\w.-]*\.(?:md|ipynb|yaml|sbatch)\b`)
	inUpstream = regexp.MustCompile(`docs/upstream\.md, "([^"]+)"`)
)

// TestComments checks that documents, and headings of docs/upstream.md, in comments of Go exist.
func TestComments(t *testing.T) {
	upstream := map[string]bool{}
	for _, found := range heading.FindAllStringSubmatch(read(t, "docs/upstream.md"), -1) {
		upstream[strings.ToLower(found[1])] = true
	}
	headings := 0
	for _, file := range tracked(t, "*.go") {
		for _, group := range parsed(t, file).Comments {
			text := strings.Join(strings.Fields(group.Text()), " ")
			for _, found := range inUpstream.FindAllStringSubmatch(text, -1) {
				headings++
				if !upstream[strings.ToLower(strings.TrimSuffix(found[1], "."))] {
					t.Errorf("%s names the section %q, which docs/upstream.md does not have", file, found[1])
				}
			}
			for _, name := range named.FindAllString(text, -1) {
				if !exists(name) && !exists(path.Join(path.Dir(file), name)) && !elsewhere[name] {
					t.Errorf("%s names %s, which does not exist", file, name)
				}
			}
		}
	}
	if headings < 10 {
		t.Errorf("only %d sections of docs/upstream.md named", headings)
	}
}

// elsewhere are files of other projects.
var elsewhere = map[string]bool{
	"doc/PERFORMANCE.md":                            true, // of nccl-tests
	"internal/gobackend/dot/matmul/nosimd_small.go": true, // of GoMLX's compute
}
