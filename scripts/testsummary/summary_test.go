package main

import (
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func TestSummaryCountsTestsWithoutSubtests(t *testing.T) {
	tests := map[string]struct {
		events []string
		want   string
		counts counts
	}{
		"a package that passes": {
			[]string{
				`{"Action":"start","Package":"p"}`,
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}`,
				`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0}`,
				`{"Action":"output","Package":"p","Output":"PASS\n"}`,
				`{"Action":"pass","Package":"p","Elapsed":1.25}`,
			},
			"ok\tp\t1.2s\n", counts{passed: 1},
		},
		"subtests of which one fails": {
			[]string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"run","Package":"p","Test":"TestA/x"}`,
				`{"Action":"run","Package":"p","Test":"TestA/y"}`,
				`{"Action":"output","Package":"p","Test":"TestA/y","Output":"    a_test.go:3: got 1\n"}`,
				`{"Action":"pass","Package":"p","Test":"TestA/x"}`,
				`{"Action":"fail","Package":"p","Test":"TestA/y"}`,
				`{"Action":"fail","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}`,
				`{"Action":"fail","Package":"p"}`,
			},
			"    a_test.go:3: got 1\nFAIL\tp\t0.1s\nFAILED p.TestA/y\n    a_test.go:3: got 1\nFAILED p.TestA\n", counts{passed: 1, failed: 1},
		},
		"a skipped test says why": {
			[]string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: strace is not installed\n"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestA"}`,
				`{"Action":"pass","Package":"p","Elapsed":0}`,
			},
			"skipped p.TestA: strace is not installed\nok\tp\t0.0s\n", counts{skipped: 1},
		},
		"a package that does not build": {
			[]string{
				`{"ImportPath":"p [p.test]","Action":"build-output","Output":"p.go:1: undefined: x\n"}`,
				`{"ImportPath":"p [p.test]","Action":"build-fail"}`,
				`{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}`,
				`{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`,
			},
			"p.go:1: undefined: x\nFAIL\tp [build failed]\n", counts{failed: 1},
		},
		"a test that panics": {
			[]string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"panic: x\n"}`,
				`{"Action":"fail","Package":"p","Test":"TestA"}`,
				`{"Action":"fail","Package":"p"}`,
			},
			"panic: x\nFAILED p.TestA\n", counts{failed: 1},
		},
		"a process that ends in the middle of a test": {
			[]string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"half a "}`,
				`{"Action":"output","Package":"p","Output":"exit status 3\n"}`,
				`{"Action":"fail","Package":"p"}`,
			},
			"half a exit status 3\n", counts{failed: 1},
		},
		"no test files": {
			[]string{`{"Action":"output","Package":"p","Output":"?   \tp\t[no test files]\n"}`, `{"Action":"skip","Package":"p"}`},
			"-\tp\tno tests\n", counts{},
		},
		"a word of go itself": {[]string{"go: downloading x v1"}, "go: downloading x v1\n", counts{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			got, _, err := summarise(strings.NewReader(strings.Join(tt.events, "\n")), &out)
			if err != nil || got != tt.counts || out.String() != tt.want {
				t.Errorf("got %v %v\n%s\nwant %v\n%s", got, err, out.String(), tt.counts, tt.want)
			}
		})
	}
}

func TestLastLineIsTheCount(t *testing.T) {
	assert.Equal(t, (counts{3, 2, 1}).String(), "3 passed, 2 failed, 1 skipped")
}
