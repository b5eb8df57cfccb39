# The sources of src/tokenizer, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  answer_text.cpp
  call_arguments.cpp
  call_parse.cpp
  chat.cpp
  chat_json.cpp
  chat_parse.cpp
  json.cpp
  known_ids.cpp
  media_part.cpp
  python_text.cpp
  tokenizer.cpp
  utf8.cpp
  vocab.cpp
)
