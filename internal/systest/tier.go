package systest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shardbook/shardbook/internal/cache"
)

// EnvTier names the environment variable that chooses the tier: "quick" or "full". Without it, CI runs everything and
// everybody else the quick tier.
const EnvTier = "SHARDBOOK_TEST"

// Full reports whether everything is to be tested: all layouts, all notebooks, the image, the browser, hosts. The quick
// tier tests every technique and every library, with fewer cases.
func Full() bool {
	switch tier := os.Getenv(EnvTier); tier {
	case "full":
		return true
	case "quick":
		return false
	case "":
		return os.Getenv("CI") != ""
	default:
		panic(fmt.Sprintf("%s=%q: set it to \"quick\" or \"full\", or to nothing", EnvTier, tier))
	}
}

// Reason is why something is not tested.
type Reason string

// The reasons there are.
const (
	Tier    Reason = "tier"     // the quick tier leaves it to the full one
	NotRoot Reason = "not root" // only root may do it
	NoGPU   Reason = "no GPU"
	NoPeers Reason = "no peers" // other systems to compare with: go run ./bench install
	System  Reason = "system"   // the machine has no such thing, or it cannot be installed
	Race    Reason = "race"     // the race detector changes what is tested
)

// FullOnly skips a test in the quick tier, and says what that leaves untested.
func FullOnly(t testing.TB, what string) {
	t.Helper()
	if !Full() {
		Skip(t, Tier, what)
	}
}

// OfFull returns all cases in the full tier. In the quick one it returns the first n, and notes the rest as left out.
func OfFull[T any](t testing.TB, n int, cases []T) []T {
	t.Helper()
	if Full() || n >= len(cases) {
		return cases
	}
	LeftOut(t, fmt.Sprintf("%d of %d cases", len(cases)-n, len(cases)))
	return cases[:n]
}

// LeftOut notes a part of a test that the quick tier leaves to the full one.
func LeftOut(t testing.TB, what string) {
	t.Helper()
	note(t, Tier, what)
	t.Log("left to the full tier:", what)
}

// Skip skips a test for a reason, and notes it for the table that a run of all tests ends with. In CI only what
// allowed.txt lists may be skipped; all else fails, but for what the quick tier leaves to the full one.
func Skip(t testing.TB, why Reason, what any) {
	t.Helper()
	note(t, why, fmt.Sprint(what))
	if line := allowedLine(t, why); os.Getenv("CI") != "" && why != Tier &&
		!slices.Contains(strings.Split(allowed, "\n"), line) {
		t.Fatalf("skipped (%v): give CI what it needs, or allow it with the line %q in internal/systest/allowed.txt",
			what, line)
	}
	t.Skipf("%s: %v", why, what)
}

//go:embed allowed.txt
var allowed string

// allowedLine is the line that allows CI to skip a test, or the test that it is part of.
func allowedLine(t testing.TB, why Reason) string {
	_, at, _ := where()
	name, _, _ := strings.Cut(t.Name(), "/")
	return fmt.Sprintf("%s: %s %s", why, at, name)
}

// Omission is something that a run of the tests left out.
type Omission struct {
	Package string // its folder in the repository
	Test    string
	Why     Reason
	What    string
}

// go test does not show the output of a package's tests if they pass. So each package writes its omissions into a file,
// which its next run replaces, and package tests, which runs last, prints them.

// Records is the folder of these files, for this checkout and this tier.
func Records() (string, error) {
	root, err := cache.Dir("")
	if err != nil {
		return "", err
	}
	checkout, _, err := where()
	if err != nil {
		return "", err
	}
	tier := "quick"
	if Full() {
		tier = "full"
	}
	return filepath.Join(root, "tests", strings.ReplaceAll(checkout, string(filepath.Separator), "%"), tier), nil
}

// where returns the repository's folder, and the path below it of the test's package, in whose folder go test starts
// the test.
func where() (checkout, at string, err error) {
	started, err := startedIn()
	if err != nil {
		return "", "", err
	}
	for checkout = started; ; checkout = filepath.Dir(checkout) {
		if _, err := os.Stat(filepath.Join(checkout, "go.mod")); err == nil {
			at, err = filepath.Rel(checkout, started)
			return checkout, at, err
		}
		if checkout == filepath.Dir(checkout) {
			return "", "", fmt.Errorf("no go.mod above %s", started)
		}
	}
}

// startedIn is the folder in which the process was started.
var startedIn = sync.OnceValues(os.Getwd)

func init() {
	startedIn()
	if !testing.Testing() || !startedByGo() || partial(os.Args[1:]) {
		return
	}
	if file, err := recordOf(); err == nil {
		os.Remove(file)
	}
}

// partial reports whether a test binary was told to run some tests only.
func partial(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		for _, flag := range []string{"-test.run=", "-test.skip=", "-test.list=", "-test.bench=", "-test.fuzz="} {
			if value, ok := strings.CutPrefix(arg, flag); ok && value != "" {
				return true
			}
		}
		return false
	})
}

// startedByGo reports whether go test started this process, and not a test.
func startedByGo() bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", os.Getppid()))
	return err != nil || filepath.Base(name) == "go" // without /proc: assume so
}

func recordOf() (string, error) {
	folder, err := Records()
	if err != nil {
		return "", err
	}
	_, at, err := where()
	return filepath.Join(folder, strings.ReplaceAll(at, string(filepath.Separator), "%")+".jsonl"), err
}

var noting sync.Mutex

// note adds a line to the package's file. If that fails, the test goes on.
func note(t testing.TB, why Reason, what string) {
	t.Helper()
	noting.Lock()
	defer noting.Unlock()
	path, err := recordOf()
	if err != nil {
		return
	}
	_, at, _ := where()
	line, err := json.Marshal(Omission{at, t.Name(), why, what})
	if err != nil || os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer file.Close()
	file.Write(append(line, '\n'))
}

// Pairwise returns all cases in the full tier. In the quick one it returns enough that every two values of two factors
// that meet in some case meet in one that is returned (a covering array of strength 2), and notes the rest as left out.
// Most faults of options that are combined show with two of them (Kuhn, Wallace and Gallo, IEEE Transactions on
// Software Engineering 30(6), 2004).
func Pairwise[T any](t testing.TB, cases []T, factors func(T) []any) []T {
	t.Helper()
	if Full() {
		return cases
	}
	some := pairwise(cases, factors)
	if n := len(cases) - len(some); n > 0 {
		LeftOut(t, fmt.Sprintf("%d of %d cases, all of whose pairs of options occur in the others", n, len(cases)))
	}
	return some
}

// pair is two factors of a case, and their values.
type pair struct {
	i, j int
	a, b any
}

func pairsOf(factors []any) (all []pair) {
	for j := range factors {
		for i := range j {
			all = append(all, pair{i, j, factors[i], factors[j]})
		}
	}
	return all
}

// pairwise takes the first case with the most missing pairs, until no pair is missing.
func pairwise[T any](cases []T, factors func(T) []any) (some []T) {
	missing := map[pair]bool{}
	pairs := make([][]pair, len(cases))
	for i, c := range cases {
		pairs[i] = pairsOf(factors(c))
		for _, p := range pairs[i] {
			missing[p] = true
		}
	}
	taken := make([]bool, len(cases))
	for len(missing) > 0 {
		best, most := 0, 0
		for i := range cases {
			n := 0
			for _, p := range pairs[i] {
				if missing[p] {
					n++
				}
			}
			if n > most {
				best, most = i, n
			}
		}
		taken[best] = true
		for _, p := range pairs[best] {
			delete(missing, p)
		}
	}
	for i, c := range cases {
		if taken[i] {
			some = append(some, c)
		}
	}
	return some
}
