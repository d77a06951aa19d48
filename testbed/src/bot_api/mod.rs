//! A stand-in for the Telegram Bot API, as strict as the real one.
