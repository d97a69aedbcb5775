/* `python.exe`: the interpreter is all in its library. */
#include <wchar.h>

int Py_Main(int count, wchar_t **words);

int wmain(int count, wchar_t **words) { return Py_Main(count, words); }
