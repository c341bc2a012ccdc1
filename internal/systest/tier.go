package systest

import (
	_ "embed"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
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
