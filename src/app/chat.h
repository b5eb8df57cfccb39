#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "app/code_colour.h"
#include "app/media_options.h"
#include "app/options.h"
#include "tokenizer/chat.h"
#include "tokenizer/chat_parse.h"

namespace facet {

struct ChatOptions {
  EngineConfig engine;
  DraftOptions draft;
  Sampling sampling;
  Voice voice;
  MediaFiles files;
  bool seed_given = false, thinking = false, no_history = false;
  std::string system;
  int n = -1;
};

// A conversation in the terminal: what its commands do, and its answers.
class Chat {
 public:
  Chat(Engine& engine, ChatOptions o);

  bool command(const std::string& text);  // false when the user leaves
  void answer(const std::string& text);
  // A picture, video or sound of the next message.
  Status attach(const std::string& path, MediaKind kind);

 private:
  bool command(const std::string& name, const std::string& rest);  // false: there is none of that name
  void reset();
  bool undo();
  void think(const std::string& value);
  void set(const std::string& rest);
  void read(const std::string& path);
  void save(const std::string& path);
  void load(const std::string& path);
  void regenerate();
  void describe_model();
  void add(const char* role, const std::string& content);

  Result<std::vector<ContentPart>> encoded(const std::string& path, MediaKind kind);
  Result<Request> request(bool& in_thought) const;
  bool generate();  // an answer to the messages; false where there is none, which has been told
  void told(const Usage& u, Stop why);
  void show(const std::vector<ParseEvent>& events);
  void end_thought();

  Engine& engine_;
  ChatOptions o_;
  const Tokenizer& t_;
  std::vector<Message> messages_;
  std::vector<ContentPart> attached_;                           // of the next message
  std::string read_;                                            // files of the next message
  std::map<const std::string*, std::vector<MediaItem>> items_;  // by ContentPart::bytes
  std::string stats_;
  bool files_ = false;  // the conversation has texts of files: they spell no control tokens
  bool in_thought_ = false;
  Usage drafted_;        // of all answers, its drafts alone
  bool warned_ = false;  // of a drafter that is of no use
  bool escapes_;
  CodeColour colour_;
};

}  // namespace facet
