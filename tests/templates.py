"""Chat templates in the manner of well-known families, written for the tests, over the bundled tokenizer's tokens."""

from __future__ import annotations

# A vision model's that knows no tools; adds a system turn of its own.
QWEN2_VL = """\
{%- for message in messages -%}
{%- if loop.first and message.role != 'system' %}<|im_start|>system
You see pictures.<|im_end|>
{% endif -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}
{%- if part.type == 'image' or 'image_url' in part %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in part %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# One that knows tools, calls, results and reasoning; a generation prompt may close the reasoning at once.
QWEN3 = """\
{%- macro shown(content) -%}
{%- if content is string %}{{ content }}{% else %}{% for part in content %}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}
{%- endmacro %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ shown(messages[0].content) + '\\n\\n' }}{% endif %}
{{- '# Functions\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
{{- '\\n</tools>\\nCall them as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + shown(messages[0].content) + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- set content = shown(message.content) %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- set thought = '' %}
{%- if message.reasoning_content is string %}
{%- set thought = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if thought %}{{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}
{{- content }}
{%- for call in message.tool_calls or [] %}
{%- set call = call.function or call %}
{{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments if call.arguments is string else call.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

# One that trims every turn and opens the reasoning itself.
LLAMA3 = """\
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- set date = date_string if date_string is defined else 'today' %}
{{- '<|im_start|>system\\n\\nDate: ' + date + '\\n' }}
{%- if tools is not none %}
{{- 'Answer with {"name": function name, "parameters": dictionary of argument name and its value}.\\n' }}
{%- for tool in tools %}{{ tool | tojson(indent=4) + '\\n\\n' }}{% endfor %}
{%- endif %}
{{- '<|im_end|>' }}
{%- for message in messages %}
{%- if message.role == 'tool' or message.role == 'ipython' %}
{{- '<|im_start|>ipython\\n\\n' }}
{%- if message.content is mapping or message.content is iterable %}{{ message.content | tojson }}
{%- else %}{{ message.content }}{% endif %}
{{- '<|im_end|>' }}
{%- elif 'tool_calls' in message %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('only one call at once') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|im_start|>assistant\\n\\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson + '}<|im_end|>' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n\\n' + message.content | trim + '<|im_end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n\\n<think>\\n' }}{% endif %}
"""

# One that walks through the schemas of tools and compares words in them, and checks the ids of calls. It writes
# `<|` + role + `|>`, the halves of a token.
WALKING = """\
{%- macro kind(schema) -%}
{%- if schema.type == 'string' %}str{% elif schema.type == 'integer' %}int
{%- elif schema.type == 'array' %}list[{{ kind(schema['items']) }}]{% else %}any{% endif %}
{%- endmacro %}
{%- for tool in tools or [] %}
{{- '[AVAILABLE] ' + tool.function.name + '(' }}
{%- for name, schema in tool.function.parameters.properties.items() %}
{{- name + ': ' }}{{ kind(schema) }}{{ '' if name in tool.function.parameters.required else ' = None' }}
{{- '' if loop.last else ', ' }}
{%- endfor %}
{{- ')' }}
{%- if tool.function.description %}{{ ' - ' + tool.function.description }}{% endif %}
{{- '\\n' }}
{%- endfor %}
{%- for message in messages %}
{{- '<|' + message.role + '|>' }}
{%- if message.role == 'assistant' and message.tool_calls is defined %}
{{- '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids of calls have 9 characters') }}{% endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + ', "id": "' + call.id }}
{{- '"}' }}{{ '' if loop.last else ', ' }}
{%- endfor %}
{{- ']' }}
{%- elif message.role == 'tool' %}
{{- '[RESULT]' + message.name + ' ' + message.tool_call_id + ': ' + message.content }}
{%- else %}
{{- message.content }}
{%- endif %}
{{- '<|im_end|>' }}
{%- endfor %}
"""
