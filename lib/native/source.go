package native

import (
	"fmt"
	"strconv"
	"strings"
)

// callName names the function that withBindings generates for a binding, by its number.
func callName(i int) string   { return "shardbook_call_" + strconv.Itoa(i) }
func kernelName(i int) string { return "shardbook_kernel_" + strconv.Itoa(i) }

// strict makes errors of implicit conversions and declarations, which C allows, in the calls of bound functions. In
// CUDA, as in C++, only conversions of numbers are allowed.
const strict = `#pragma GCC diagnostic error "-Wimplicit-function-declaration"
#pragma GCC diagnostic error "-Wincompatible-pointer-types"
#pragma GCC diagnostic error "-Wint-conversion"
#pragma GCC diagnostic error "-Wconversion"
`

// withBindings appends to the source a function for each binding, which takes its arguments from words and calls the
// function of the source. So the compiler checks the types.
func withBindings(in language, source string, bound []*binding) (string, error) {
	var s strings.Builder
	s.WriteString(source + "\n#line 1 \"bindings\"\n")
	if !in.cuda {
		s.WriteString(strict)
	}
	for i, b := range bound {
		if b.launch != nil {
			return "", fmt.Errorf("native: Global(%q): it is for CompileCUDA: give Load and LoadCUDA a Bind", b.name)
		}
		if in.cuda && !b.fails {
			return "", fmt.Errorf("native: Bind(%q) with a %v: a GPU's errors need somewhere to go: make "+
				"its result an error", b.name, b.of)
		}
		b.writeCall(&s, i, in.cuda)
		if b.forXLA() && !in.cuda {
			b.writeKernel(&s, i)
		}
	}
	return s.String(), nil
}

func (b *binding) writeCall(s *strings.Builder, number int, cuda bool) {
	if cuda {
		s.WriteString("extern \"C\" ")
	}
	fmt.Fprintf(s, "const char *%s(const uint64_t *w, void *result) {\n\t(void)w, (void)result;\n", callName(number))
	if cuda {
		s.WriteString("\tconst char *problem;\n\tint gpu = -1;\n")
	}
	args, at := make([]string, len(b.parameters)), 0
	for i, p := range b.parameters {
		args[i] = fmt.Sprint("a", i)
		fmt.Fprintf(s, "\t%s a%d;\n\tmemcpy(&a%d, w + %d, sizeof a%d);\n", p.c, i, i, at, i)
		if cuda && p.points() {
			fmt.Fprintf(s, "\tif ((problem = native_to_gpu((void *)(uintptr_t)w[%d], &gpu))) return problem;\n", at)
		}
		at += p.words
	}
	// In the compiler's messages the binding stands in place of a file name.
	fmt.Fprintf(s, "#line 1 %q\n", fmt.Sprintf("Bind %s as %v", b.name, b.of))
	called := fmt.Sprintf("%s(%s);", b.name, strings.Join(args, ", "))
	switch {
	case cuda:
		fmt.Fprintf(s, "\tproblem = %s\n\treturn problem ? problem : native_finish();\n}\n", called)
	case b.fails:
		fmt.Fprintf(s, "\tconst char *problem = %s\n\treturn problem;\n}\n", called)
	case b.result.c != "":
		fmt.Fprintf(s, "\t%s r = %s\n\tmemcpy(result, &r, sizeof r);\n\treturn NULL;\n}\n", b.result.c, called)
	default:
		fmt.Fprintf(s, "\t%s\n\treturn NULL;\n}\n", called)
	}
}

// forXLA reports whether XLA can call the function: with slices and numbers, for nothing or an error.
func (b *binding) forXLA() bool {
	for _, p := range b.parameters {
		if p.points() && p.words == 1 {
			return false
		}
	}
	return b.result.c == "" && len(b.parameters) > 0
}

// writeKernel writes a handler that gathers the arguments of a call, w, and calls the function.
func (b *binding) writeKernel(s *strings.Builder, number int) {
	b.writeHandler(s, number, fmt.Sprintf("\tconst char *problem = %s(w, NULL);\n"+
		"\treturn problem ? foreign_fail(f, problem) : NULL;\n", callName(number)))
}

func (b *binding) writeHandler(s *strings.Builder, number int, then string) {
	fmt.Fprintf(s, "static foreign_error *shardbook_run_%d(foreign_frame *f) {\n\tstatic const "+
		"native_parameter p[] = {", number)
	for _, p := range b.parameters {
		types := strings.Trim(fmt.Sprint(p.of.xla), "[]")
		fmt.Fprintf(s, "{%t, %d, {%s}}, ", p.words == 2, p.of.bytes, strings.ReplaceAll(types, " ", ", "))
	}
	fmt.Fprintf(s, `};
	uint64_t w[%d];
	char text[160];
	if (!native_gather(f, p, %d, w, text, sizeof text)) return foreign_fail(f, text);
%s}
void *%s(foreign_frame *f) { return foreign_handle(f, shardbook_run_%d); }
`, b.words, len(b.parameters), then, kernelName(number), number)
}
