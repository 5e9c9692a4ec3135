# Two commands matter: `make demo` and `make test`. Both set everything up in .venv first.
PYTHON ?= python3
BIN := .venv/bin
KERNEL := src/diffattn/ops/cpu

.PHONY: demo test test-slow sanitize lint bench clean

demo: .venv
	$(BIN)/diffattn compare quick

test: .venv lint
	$(BIN)/pytest -m "not slow" -n 2

test-slow: .venv
	$(BIN)/pytest -m slow

# The kernel's tests with its memory and its arithmetic watched, those of the library's discovery and of the memory it
# needs (the sanitizer's own is larger) excepted; Python itself leaks at exit by design.
sanitize: ISA ?= avx2
sanitize: .venv
	$(BIN)/python $(KERNEL)/build.py --sanitize --into build/sanitize $(ISA)
	rm -f build/sanitize/found.*
	LD_PRELOAD="$(foreach name,libasan.so libubsan.so libstdc++.so.6,$(shell $${CXX:-g++} -print-file-name=$(name)))" \
	ASAN_OPTIONS=detect_leaks=0:log_path=build/sanitize/found UBSAN_OPTIONS=print_stacktrace=1:log_path=build/sanitize/found \
	DIFFATTN_CPU_FOLDER=build/sanitize DIFFATTN_CPU_ISA=$(ISA) \
	$(BIN)/pytest -x -n 2 -m "not slow" -k "not memory" tests/ops/cpu --ignore tests/ops/cpu/test_library.py \
	|| { head -n 30 build/sanitize/found.*; exit 1; }

lint: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(wildcard $(KERNEL)/*.cpp $(KERNEL)/*.h)

bench: .venv
	$(BIN)/diffattn bench attention
	$(BIN)/diffattn bench step
	$(BIN)/diffattn bench decode

# The stamp is older than pyproject.toml when dependencies changed; then the environment is brought up to date.
.venv: .venv/stamp .venv/kernel
.venv/stamp: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "diffattn needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# Without a compiler everything works, slower: the other implementations serve.
.venv/kernel: .venv/stamp $(wildcard $(KERNEL)/*.cpp $(KERNEL)/*.h) $(KERNEL)/build.py
	-$(BIN)/python $(KERNEL)/build.py
	touch $@

clean:
	rm -rf .venv runs build $(KERNEL)/*.so
