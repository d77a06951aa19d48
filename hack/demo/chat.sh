# The chat that receives the messages: the stand-in's, which the demo prints, or the user's own (TELEGRAM_TOKEN and
# TELEGRAM_CHAT). Sourced by ../demo.sh.
# shellcheck shell=bash disable=SC2034,SC2154 # variables that ../demo.sh sets and reads

wrong() { # message
  printf '%s\n' "$@" >&2
  exit 2
}
readonly stand_in_token=12345678:ABCDEFUABCDEFUABCDEFUABCDEFU stand_in_chat=12345678 own_api=${TELEGRAM_API_URL:-}
case "${TELEGRAM_TOKEN:+token}${TELEGRAM_CHAT:+chat}" in
  '') own_chat='' token=$stand_in_token chat=$stand_in_chat ;;
  tokenchat) own_chat=yes token=$TELEGRAM_TOKEN chat=$TELEGRAM_CHAT ;;
  token) wrong "TELEGRAM_CHAT is missing: write the chat's number, such as TELEGRAM_CHAT=123456789, or TELEGRAM_CHAT=@channel" ;;
  chat) wrong "TELEGRAM_TOKEN is missing: write the token that @BotFather gave you" ;;
esac
[[ $token =~ ^[0-9]+:[A-Za-z0-9_-]+$ ]] || wrong 'TELEGRAM_TOKEN is no token: write it as @BotFather gave it, digits, a colon, characters'
[[ $chat =~ ^(-?[0-9]+|@[A-Za-z0-9_]+)$ ]] || wrong "TELEGRAM_CHAT=$chat is no chat: write its number, or @channel"
readonly own_chat token chat

# The sample's chatId. A number stays unquoted: a string would be a channel's name.
if [[ $chat == @* ]]; then chat_field="\"$chat\""; else chat_field=$chat; fi
readonly chat_field

in_chat() { # text: waits for a message with the text and prints it; the user's own chat shows the message itself
  if [ -z "$own_chat" ]; then
    received "$1"
  else
    printf '\n    %s%s%s\n' "$green" "-> in your chat: $1" "$plain"
  fi
}
