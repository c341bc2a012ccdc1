package memest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/big"
	"strings"
	"sync"
)

// vars are the values of a formula's names.
type vars map[string]int64

// compute computes a formula exactly: +, -, *, /, parentheses, whole numbers, names, and ceil(x) of a fraction. So what
// a ledger shows beside a number is what the number was computed with. A result that is no whole number is rounded up.
// One that int64 does not hold is an error, and so are mistakes in the formula.
func (v vars) compute(formula string) (int64, error) {
	expr, err := parse(formula)
	if err != nil {
		return 0, fmt.Errorf("formula %q: %w", formula, err)
	}
	x, err := v.eval(expr)
	if err != nil {
		return 0, fmt.Errorf("formula %q: %w", formula, err)
	}
	n := roundUp(x)
	if !n.IsInt64() {
		return 0, fmt.Errorf("%s bytes are more than an int64 holds, with %s: make the model, the batch or "+
			"the sequence smaller",
			formula, v.of(expr))
	}
	return n.Int64(), nil
}

// sheet computes formulas of the same names again and again.
type sheet struct {
	vars
	known map[string]computed
}

// computed is what a formula comes to, and the values of its names.
type computed struct {
	bytes  int64
	values string
}

func newSheet(v vars) *sheet { return &sheet{v, map[string]computed{}} }

// compute is [vars.compute], and lists the values of the formula's names.
func (s *sheet) compute(formula string) (computed, error) {
	if c, ok := s.known[formula]; ok {
		return c, nil
	}
	n, err := s.vars.compute(formula)
	if err != nil {
		return computed{}, err
	}
	expr, err := parse(formula)
	if err != nil {
		return computed{}, err
	}
	c := computed{n, s.of(expr)}
	s.known[formula] = c
	return c, nil
}

func (v vars) eval(e ast.Expr) (*big.Rat, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if x, ok := new(big.Rat).SetString(e.Value); ok && e.Kind == token.INT {
			return x, nil
		}
	case *ast.Ident:
		if x, ok := v[e.Name]; ok {
			return new(big.Rat).SetInt64(x), nil
		}
		return nil, fmt.Errorf("nothing is called %s", e.Name)
	case *ast.ParenExpr:
		return v.eval(e.X)
	case *ast.CallExpr:
		if name, ok := e.Fun.(*ast.Ident); ok && name.Name == "ceil" && len(e.Args) == 1 {
			x, err := v.eval(e.Args[0])
			if err != nil {
				return nil, err
			}
			return new(big.Rat).SetInt(roundUp(x)), nil
		}
	case *ast.BinaryExpr:
		x, err := v.eval(e.X)
		if err != nil {
			return nil, err
		}
		y, err := v.eval(e.Y)
		if err != nil {
			return nil, err
		}
		switch e.Op {
		case token.ADD:
			return x.Add(x, y), nil
		case token.SUB:
			return x.Sub(x, y), nil
		case token.MUL:
			return x.Mul(x, y), nil
		case token.QUO:
			if y.Sign() == 0 {
				return nil, fmt.Errorf("division by zero")
			}
			return x.Quo(x, y), nil
		}
	}
	return nil, fmt.Errorf("it can have +, -, *, /, parentheses, whole numbers, names and ceil alone")
}

func roundUp(x *big.Rat) *big.Int {
	n := new(big.Int).Add(x.Num(), x.Denom())
	return n.Sub(n, big.NewInt(1)).Div(n, x.Denom())
}

// of lists the values of the names in an expression, as in "b=2, s=4096".
func (v vars) of(e ast.Expr) string {
	var found []string
	seen := map[string]bool{}
	ast.Inspect(e, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && !seen[id.Name] {
			if x, ok := v[id.Name]; ok {
				seen[id.Name] = true
				found = append(found, fmt.Sprintf("%s=%d", id.Name, x))
			}
		}
		return true
	})
	return strings.Join(found, ", ")
}

// parsed keeps expressions, since the same few formulas come again and again.
var parsed sync.Map

func parse(formula string) (ast.Expr, error) {
	if e, ok := parsed.Load(formula); ok {
		return e.(ast.Expr), nil
	}
	e, err := parser.ParseExpr(formula)
	if err != nil {
		return nil, err
	}
	parsed.Store(formula, e)
	return e, nil
}
